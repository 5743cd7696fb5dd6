// SPDX-License-Identifier: Apache-2.0
//
// Broken and unsupported tokenizer files: an error that says what and where.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "plugins/sdk/lib/byte_tokenizer.h"
#include "plugins/sdk/tokenizer.h"
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
  ExpectError(with("content", "<y>"), kInvalid,
              "added_tokens[1]: \"<y>\" has id 256, but 257 is the next");
  ExpectError(with("content", ""), kInvalid, "added_tokens[1]");
  ExpectError(with("id", 1e9), kInvalid, "added_tokens[1].id");
  ExpectError(with("id", 1e30), kInvalid,
              "added_tokens[1].id: must be an integer");
  ExpectError(with("id", -5), kInvalid, "id -5");
  ExpectError(with("lstrip", "yes"), kInvalid, "added_tokens[1].lstrip");
  ExpectError(with("colour", "red"), kUnsupported, "added_tokens[1].colour");
}

TEST(HostileFilesTest, ManyTokensBesideTheFile) {
  Json named = Json::object();
  Json extra = Json::array();
  for (int i = 0; i < 60000; ++i) {
    named[absl::StrCat("x", i, "_token")] = absl::StrCat("<", i, ">");
    extra.push_back(absl::StrCat("<", i, ">"));
  }
  ExpectError(ByteTokenizerJson(), kInvalid, "more than 1000 tokens with names",
              named.dump());
  const auto many = Load(ByteTokenizerJson(),
                         Json({{"additional_special_tokens", extra}}).dump());
  ASSERT_TRUE(many.ok()) << many.status();
  EXPECT_EQ((*many)->vocab_size(), 256 + 60000);
}

TEST(HostileFilesTest, WhatIsntSupportedIsNamed) {
  ExpectError(With("/model/type", "Markov"), kUnsupported, "model.type");
  ExpectError(With("/model/type", "WordPiece"), kUnsupported, "model.");
  ExpectError(With("/model/dropout", 0.1), kUnsupported, "model.dropout");
}

TEST(HostileFilesTest, Models) {
  const auto with = [](const Json& model) { return With("/model", model); };
  ExpectError(with({{"type", "WordPiece"}, {"vocab", {{"a", 0}}}}), kInvalid,
              "model.unk_token");
  ExpectError(with({{"type", "WordLevel"},
                    {"vocab", Json::object()},
                    {"unk_token", "a"}}),
              kInvalid, "model.vocab: there is no token in it");
  ExpectError(with({{"type", "Unigram"}, {"vocab", {1}}}), kInvalid,
              "model.vocab: token 0 must be [\"token\", score]");
  ExpectError(with({{"type", "Unigram"}, {"vocab", {{"a", "b"}}}}), kInvalid,
              "model.vocab");
  ExpectError(with({{"type", "Unigram"},
                    {"vocab", Json::array({Json::array({"a", -1.5})})},
                    {"unk_id", 1}}),
              kInvalid, "model.unk_id: 1 is the id of no token");
}

// A token for what is unknown is missed when it is needed.
TEST(HostileFilesTest, NoTokenForWhatIsUnknown) {
  const Json pairs = Json::array({Json::array({"a", -1.5})});
  for (const Json& model :
       {Json({{"type", "Unigram"}, {"vocab", pairs}}),
        Json(
            {{"type", "WordLevel"}, {"vocab", {{"a", 0}}}, {"unk_token", "?"}}),
        Json({{"type", "WordPiece"},
              {"vocab", {{"a", 0}}},
              {"unk_token", "?"},
              {"continuing_subword_prefix", "#"},
              {"max_input_chars_per_word", 9}}),
        Json({{"type", "BPE"},
              {"vocab", {{"a", 0}}},
              {"merges", Json::array()},
              {"unk_token", "?"}})}) {
    Json json = Json::parse(ByteTokenizerJson());
    json["model"] = model;
    json["pre_tokenizer"] = nullptr;
    const auto tokenizer = Load(json.dump());
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    EXPECT_EQ((*tokenizer)->Encode("a"), std::vector<int64_t>({0})) << model;
    EXPECT_THROW((*tokenizer)->Encode("b"), std::runtime_error) << model;
    EXPECT_EQ((*tokenizer)->FirstUnknown("a"), -1) << model;
    EXPECT_EQ((*tokenizer)->FirstUnknown("b"), 0) << model;
  }
}

TEST(HostileFilesTest, StepsThatArentSupportedAreNamed) {
  ExpectError(With("/normalizer", {{"type", "Magic"}}), kUnsupported,
              "normalizer: a normalizer of type \"Magic\"");
  for (const char* map : {"%", "", "AAAA", "BAAAAA==", "CAAAAAAAAAA="}) {
    ExpectError(With("/normalizer",
                     {{"type", "Precompiled"}, {"precompiled_charsmap", map}}),
                kInvalid, "normalizer.precompiled_charsmap");
  }
  ExpectError(With("/normalizer", {{"type", "NFC"}, {"deep", true}}),
              kUnsupported, "normalizer.deep");
  ExpectError(With("/pre_tokenizer", {{"type", "Scissors"}}), kUnsupported,
              "pre_tokenizer");
  ExpectError(With("/pre_tokenizer", {{"type", "FixedLength"}, {"length", 0}}),
              kInvalid, "pre_tokenizer.length");
  ExpectError(With("/pre_tokenizer",
                   {{"type", "CharDelimiterSplit"}, {"delimiter", "ab"}}),
              kInvalid, "pre_tokenizer.delimiter");
  ExpectError(With("/pre_tokenizer", {{"type", "Split"},
                                      {"pattern", {{"Regex", "a\\b"}}},
                                      {"behavior", "Isolated"}}),
              kUnsupported, "pre_tokenizer.pattern.Regex");
  ExpectError(With("/pre_tokenizer", {{"type", "Split"},
                                      {"pattern", {{"String", ""}}},
                                      {"behavior", "Isolated"}}),
              kInvalid, "pre_tokenizer.pattern.String: is empty");
  ExpectError(With("/post_processor", {{"type", "Stamps"}}), kUnsupported,
              "post_processor");
  ExpectError(
      With("/decoder", {{"type", "Sequence"},
                        {"decoders",
                         {{{"type", "ByteLevel"}},
                          {{"type", "Metaspace"}, {"replacement", "_"}}}}}),
      kUnsupported, "\"Metaspace\" behind ByteLevel");
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
  ExpectError(good, kInvalid, "bos_token", R"({"bos_token": 3})");
  ExpectError(good, kInvalid, "chat_template", R"({"chat_template": [1]})");
  ExpectError(good, kInvalid, "extra_special_tokens",
              R"({"extra_special_tokens": 3})");
  ExpectError(good, kInvalid, "extra_special_tokens[1]",
              R"({"extra_special_tokens": ["a", 3]})");
  ExpectError(good, kInvalid, "split_special_tokens",
              R"({"split_special_tokens": "no"})");
  ExpectError(good, kInvalid, "added_tokens_decoder: \"x\" isn't an id",
              R"({"added_tokens_decoder": {"x": {"content": "y"}}})");
  ExpectError(good, kUnsupported, "added_tokens_decoder.256.colour",
              R"({"added_tokens_decoder": {"256": {"content": "y",
                                                   "colour": "red"}}})");
  ExpectError(good, kUnsupported, "fast_tokenizer_files",
              R"({"fast_tokenizer_files": ["tokenizer.4.0.json"]})");
  ExpectError(good, kUnsupported, "fix_mistral_regex",
              R"({"fix_mistral_regex": true})");
}

TEST(HostileFilesTest, VocabularyAndMerges) {
  const auto error = [](const std::string& vocab, const std::string& merges,
                        const std::string& config) {
    const std::string folder = NewFolder("files");
    WriteText(folder + "/vocab.json", vocab);
    WriteText(folder + "/merges.txt", merges);
    WriteText(folder + "/tokenizer_config.json", config);
    return std::string(LoadTokenizer(folder).status().message());
  };
  const std::string gpt2 = R"({"tokenizer_class": "GPT2Tokenizer"})";
  EXPECT_EQ(error(R"({"a": 0, "b": 1, "ab": 2})", "a b\n", gpt2), "");
  EXPECT_THAT(error("[]", "a b\n", gpt2), HasSubstr("vocab.json must hold"));
  EXPECT_THAT(error("{}", "#version: 1\na b\nab\n", gpt2),
              HasSubstr("merges.txt, line 3: must be two tokens"));
  EXPECT_THAT(error("{}", "", R"({"tokenizer_class": "BertTokenizer"})"),
              HasSubstr("not for BertTokenizer"));
  EXPECT_THAT(error("{}", "", "{}"), HasSubstr("has no tokenizer_class"));
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
