// SPDX-License-Identifier: Apache-2.0
//
// Broken and unsupported tokenizer files: an error that says what and where.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "plugins/sdk/lib/byte_tokenizer.h"
#include "text/tokenizer/testing.h"

namespace capstan::tokenizer {
namespace {

using ::testing::HasSubstr;

void ExpectError(const std::string& tokenizer_json, absl::StatusCode code,
                 const std::string& words, const std::string& config = "") {
  const auto tokenizer = Load(tokenizer_json, config);
  ASSERT_FALSE(tokenizer.ok()) << words;
  EXPECT_EQ(tokenizer.status().code(), code) << tokenizer.status();
  EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr(words));
  EXPECT_THAT(std::string(tokenizer.status().message()),
              HasSubstr("tokenizer"));
}

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnsupported = absl::StatusCode::kUnimplemented;

// The byte tokenizer's file with the value at `pointer` replaced.
std::string With(const std::string& pointer, const Json& value) {
  Json json = Json::parse(ByteTokenizerJson());
  json[Json::json_pointer(pointer)] = value;
  return json.dump();
}

TEST(HostileFilesTest, NoFile) {
  EXPECT_EQ(LoadTokenizer(NewFolder("none")).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(HostileFilesTest, NoJson) {
  ExpectError("", kInvalid, "tokenizer.json isn't valid JSON");
  ExpectError("{\"model\": ", kInvalid, "isn't valid JSON");
  ExpectError("[1]", kInvalid, "must hold an object");
  ExpectError("{\"a\": \"\xff\"}", kInvalid, "isn't valid JSON");
  ExpectError(std::string(5000, '['), kInvalid, "isn't valid JSON");
  ExpectError("{}", kInvalid, "model: must be an object");
}

TEST(HostileFilesTest, Vocabulary) {
  ExpectError(With("/model/vocab", Json::object()), kInvalid, "no token in it");
  ExpectError(With("/model/vocab", 3), kInvalid, "model.vocab");
  ExpectError(With("/model/vocab/x", -1), kInvalid, "id -1");
  ExpectError(With("/model/vocab/xy", 2000000000u), kInvalid, "id 2000000000");
  ExpectError(With("/model/vocab/xy", "7"), kInvalid, "must be an integer");
  ExpectError(R"({"model":{"vocab":{"a":18446744073709551616},"merges":[]}})",
              kInvalid, "model.vocab: the id of \"a\" must be an integer");
  ExpectError(With("/model/vocab/xy", 65), kInvalid, "id 65 is that of");
  ExpectError(R"({"model":{"vocab":{"a":0,"a":1},"merges":[]}})", kInvalid,
              "is there twice");
}

TEST(HostileFilesTest, Merges) {
  ExpectError(With("/model/merges", nullptr), kInvalid, "model.merges");
  ExpectError(With("/model/merges", {"a b"}), kInvalid,
              "merge 0 of \"a\" and \"b\": \"ab\" isn't in the vocabulary");
  ExpectError(With("/model/merges", {"a bb"}), kInvalid, "\"bb\" isn't");
  for (const Json& merge :
       {Json("ab"), Json("a b c"), Json({"a"}), Json({"a", 1}), Json(1)}) {
    ExpectError(With("/model/merges", Json::array({merge})), kInvalid,
                "merge 0 is neither");
  }
}

TEST(HostileFilesTest, AddedTokens) {
  const Json token = {{"id", 256}, {"content", "<x>"}};
  const auto with = [&](const std::string& field, const Json& value) {
    Json changed = token;
    changed[field] = value;
    return With("/added_tokens", Json::array({token, changed}));
  };
  ExpectError(with("id", 257), kInvalid, "added_tokens[1]");
  ExpectError(with("content", "<y>"), kInvalid, "id 256 is that of");
  ExpectError(with("content", ""), kInvalid, "added_tokens[1]");
  ExpectError(with("id", 1e9), kInvalid, "added_tokens[1].id");
  ExpectError(with("id", 1e30), kInvalid,
              "added_tokens[1].id: must be an integer");
  ExpectError(with("id", -5), kInvalid, "id -5");
  ExpectError(with("lstrip", "yes"), kInvalid, "added_tokens[1].lstrip");
  ExpectError(with("colour", "red"), kUnsupported, "added_tokens[1].colour");
}

TEST(HostileFilesTest, WhatIsntSupportedIsNamed) {
  ExpectError(With("/model/type", "WordPiece"), kUnsupported, "WordPiece");
  ExpectError(With("/model/type", "Unigram"), kUnsupported, "model.type");
  ExpectError(With("/model/dropout", 0.1), kUnsupported, "model.dropout");
  ExpectError(With("/model/end_of_word_suffix", "</w>"), kUnsupported,
              "model.end_of_word_suffix");
  Json characters = Json::parse(ByteTokenizerJson());
  characters["pre_tokenizer"] = nullptr;
  characters["model"]["byte_fallback"] = true;
  ExpectError(characters.dump(), kUnsupported, "model.byte_fallback");
}

TEST(HostileFilesTest, StepsThatArentSupportedAreNamed) {
  ExpectError(With("/normalizer", {{"type", "Precompiled"}}), kUnsupported,
              "normalizer: a normalizer of type \"Precompiled\"");
  ExpectError(With("/normalizer", {{"type", "NFC"}, {"deep", true}}),
              kUnsupported, "normalizer.deep");
  ExpectError(With("/pre_tokenizer", {{"type", "BertPreTokenizer"}}),
              kUnsupported, "pre_tokenizer");
  ExpectError(With("/pre_tokenizer", {{"type", "Split"},
                                      {"pattern", {{"Regex", "a\\b"}}},
                                      {"behavior", "Isolated"}}),
              kUnsupported, "pre_tokenizer.pattern.Regex");
  ExpectError(With("/pre_tokenizer", {{"type", "Split"},
                                      {"pattern", {{"String", ""}}},
                                      {"behavior", "Isolated"}}),
              kInvalid, "pre_tokenizer.pattern.String: is empty");
  ExpectError(With("/pre_tokenizer",
                   {{"type", "Sequence"},
                    {"pretokenizers",
                     {{{"type", "ByteLevel"}}, {{"type", "Digits"}}}}}),
              kUnsupported, "pre_tokenizer.pretokenizers[1]");
  ExpectError(With("/post_processor", {{"type", "BertProcessing"}}),
              kUnsupported, "post_processor");
  ExpectError(With("/decoder", nullptr), kUnsupported, "decoder");
  ExpectError(With("/decoder", {{"type", "CTC"}}), kUnsupported, "\"CTC\"");
  ExpectError(With("/speed", 3), kUnsupported, "speed");
  Json deep = {{"type", "NFC"}};
  for (int i = 0; i < 100; ++i) {
    deep = {{"type", "Sequence"}, {"normalizers", Json::array({deep})}};
  }
  ExpectError(With("/normalizer", deep), kUnsupported, "too deeply");
  const Json many = {
      {"type", "Sequence"},
      {"normalizers", std::vector<Json>(100, Json({{"type", "NFC"}}))}};
  ExpectError(With("/normalizer", many), kUnsupported, "too many");
}

TEST(HostileFilesTest, TokenizerConfig) {
  const std::string good = ByteTokenizerJson();
  ExpectError(good, kInvalid, "tokenizer_config.json isn't valid JSON", "{");
  ExpectError(good, kInvalid, "eos_token: \"<nope>\" isn't a token",
              R"({"eos_token": "<nope>"})");
  ExpectError(good, kInvalid, "bos_token", R"({"bos_token": 3})");
  ExpectError(good, kInvalid, "chat_template", R"({"chat_template": [1]})");
}

// What is thrown while `text` is tokenized with a "normalizer"; "" if nothing.
std::string Thrown(const Json& normalizer, const std::string& text) {
  const auto tokenizer = Load(With("/normalizer", normalizer));
  if (!tokenizer.ok()) return std::string(tokenizer.status().message());
  try {
    (*tokenizer)->Encode(text);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

Json Replace(const Json& pattern, const std::string& content) {
  return {{"type", "Replace"}, {"pattern", pattern}, {"content", content}};
}

// Nine gigabytes were made of a line.
TEST(HostileFilesTest, TextsDontGrowWithoutALimit) {
  const Json doubled = Replace({{"String", "a"}}, "aaaaaaaa");
  const Json many = {{"type", "Sequence"},
                     {"normalizers", std::vector<Json>(60, doubled)}};
  EXPECT_THAT(Thrown(many, "a cat"),
              HasSubstr("tokenizer.json: its normalizer and pre_tokenizer make "
                        "more than 1048896 bytes of a text of 5 bytes"));
  const Json huge = Replace({{"Regex", "."}}, std::string(1 << 20, 'x'));
  EXPECT_THAT(Thrown(huge, "abc"), HasSubstr("more than 1048768 bytes"));
  const Json prefix = {{"type", "Prepend"},
                       {"prepend", std::string(2 << 20, 'x')}};
  EXPECT_THAT(Thrown(prefix, "abc"), HasSubstr("more than 1048768 bytes"));
  // What texts become at most: U+FDFA in full.
  std::string arabic;
  for (int i = 0; i < 100000; ++i) arabic += "\ufdfa";
  EXPECT_EQ(Thrown({{"type", "NFKD"}}, arabic), "");
}

// Each start looks at the whole text, or at all ways to cut it.
TEST(HostileFilesTest, ExpressionsDontTakeQuadraticTime) {
  const std::string text(200000, 'a');
  for (const char* regex : {"a(?=a*[bc])|c", "(?:a|aa)*[bc]"}) {
    const std::string thrown = Thrown(Replace({{"Regex", regex}}, "x"), text);
    EXPECT_THAT(thrown, HasSubstr("tokenizer.json: ")) << regex;
    EXPECT_THAT(thrown, ::testing::AnyOf(
                            HasSubstr("a text of 200000 bytes takes more than"),
                            HasSubstr("can't be matched")))
        << regex;
  }
  ExpectError(
      With("/normalizer", Replace({{"Regex", std::string(20000, 'a')}}, "x")),
      kInvalid, "has 20000 bytes, more than the limit of 16384");
  ExpectError(
      With("/normalizer", Replace({{"String", std::string(2000, 'a')}}, "x")),
      kInvalid, "has 2000 bytes, more than the limit of 1024");
}

TEST(HostileFilesTest, CountsHaveLimits) {
  const Json token = {{"id", 256}, {"content", std::string(2000, 'a')}};
  ExpectError(With("/added_tokens", Json::array({token})), kInvalid,
              "its content has 2000 bytes, more than the limit of 1024");
  const Json fuse = {
      {"type", "Strip"}, {"content", "x"}, {"start", 1}, {"stop", 0}};
  ExpectError(With("/decoder", {{"type", "Sequence"},
                                {"decoders", std::vector<Json>(100, fuse)}}),
              kUnsupported, "too many decoders");
  const Json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  ExpectError(
      With("/post_processor", {{"type", "TemplateProcessing"},
                               {"single", std::vector<Json>(100, text)}}),
      kInvalid, "has more than 64 items");
  const Json grows = {{"type", "Replace"},
                      {"pattern", {{"String", "A"}}},
                      {"content", std::string(1 << 20, 'A')}};
  ExpectError(With("/decoder", {{"type", "Sequence"},
                                {"decoders", std::vector<Json>(3, grows)}}),
              absl::StatusCode::kInternal, "the limit for its size");
}

// Random truncation or modification yields a tokenizer or an error.
TEST(HostileFilesTest, RandomDamage) {
  std::mt19937 random(4);
  Json json = Json::parse(ByteTokenizerJson());
  json["model"]["vocab"]["ab"] = 256;
  json["model"]["merges"] = {"a b"};
  json["normalizer"] = {{"type", "NFC"}};
  const std::string good = json.dump();
  for (int i = 0; i < 300; ++i) {
    std::string bad = good;
    if (i % 3 == 0) bad.resize(random() % bad.size());
    for (int j = 0; j < 3 && !bad.empty(); ++j) {
      bad[random() % bad.size()] = static_cast<char>(random());
    }
    const auto tokenizer = Load(bad);
    if (tokenizer.ok()) (*tokenizer)->Encode("a ab e\u0301 \xff");
  }
}

}  // namespace
}  // namespace capstan::tokenizer
