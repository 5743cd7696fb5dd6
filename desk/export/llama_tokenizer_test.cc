// SPDX-License-Identifier: Apache-2.0
#include "desk/export/llama_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "plugins/sdk/lib/byte_tokenizer.h"

namespace capstan {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// What splits words in Llama 3's and Qwen 2's files.
constexpr char kLlama3[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
constexpr char kQwen2[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

std::string FolderOf(const Json& json) {
  static int count = 0;
  const std::string folder =
      absl::StrCat(::testing::TempDir(), "/tokenizer", count++);
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/tokenizer.json") << json.dump();
  return folder;
}

// Bytes, and "ab" that is merged of two.
Json ByteLevelJson() {
  Json json = Json::parse(ByteTokenizerJson());
  json["model"]["vocab"]["ab"] = 256;
  json["model"]["merges"] = Json::parse(R"([["a", "b"]])");
  json["pre_tokenizer"]["use_regex"] = true;
  json["added_tokens"] = {{{"id", 257},
                           {"content", "<|end|>"},
                           {"single_word", false},
                           {"lstrip", false},
                           {"rstrip", false},
                           {"normalized", false},
                           {"special", true}}};
  return json;
}

void SplitBy(const std::string& regex, Json* json) {
  (*json)["pre_tokenizer"] = {{"type", "Sequence"},
                              {"pretokenizers",
                               {{{"type", "Split"},
                                 {"pattern", {{"Regex", regex}}},
                                 {"behavior", "Isolated"},
                                 {"invert", false}},
                                {{"type", "ByteLevel"},
                                 {"add_prefix_space", false},
                                 {"trim_offsets", true},
                                 {"use_regex", false}}}}};
}

// Bytes, letters, and what a SentencePiece model merges: "▁a", "ab", "▁ab".
Json SentencePieceJson() {
  Json vocab = {{"<unk>", 0}, {"\u2581", 257},  {"a", 258},       {"b", 259},
                {"ab", 260},  {"\u2581a", 261}, {"\u2581ab", 262}};
  for (int i = 0; i < 256; ++i) vocab[absl::StrFormat("<0x%02X>", i)] = i + 1;
  return {{"version", "1.0"},
          {"added_tokens", Json::array()},
          {"normalizer",
           {{"type", "Sequence"},
            {"normalizers",
             {{{"type", "Prepend"}, {"prepend", "\u2581"}},
              {{"type", "Replace"},
               {"pattern", {{"String", " "}}},
               {"content", "\u2581"}}}}}},
          {"pre_tokenizer", nullptr},
          {"post_processor", nullptr},
          {"decoder", nullptr},
          {"model",
           {{"type", "BPE"},
            {"unk_token", "<unk>"},
            {"fuse_unk", true},
            {"byte_fallback", true},
            {"vocab", vocab},
            {"merges", Json::parse(u8R"([["a", "b"], ["▁", "a"], ["▁", "ab"],
                                         ["▁a", "b"]])")}}}};
}

absl::StatusOr<GgufValues> Values(const Json& json, const std::string& pre = "",
                                  int64_t rows = 300) {
  std::vector<std::string> notes;
  return TokenizerValues(FolderOf(json), rows, pre, &notes);
}

std::vector<std::string> Notes(const Json& json) {
  std::vector<std::string> notes;
  EXPECT_TRUE(TokenizerValues(FolderOf(json), 300, "", &notes).ok());
  return notes;
}

template <typename T>
T Find(const absl::StatusOr<GgufValues>& values, const std::string& key) {
  EXPECT_TRUE(values.ok()) << values.status();
  if (!values.ok()) return T();
  for (const auto& [name, value] : *values) {
    if (name == absl::StrCat("tokenizer.ggml.", key)) return std::get<T>(value);
  }
  ADD_FAILURE() << "no " << key;
  return T();
}

std::string Pre(const Json& json) {
  return Find<std::string>(Values(json), "pre");
}

void ExpectRefused(const Json& json, const std::string& why) {
  const auto values = Values(json);
  ASSERT_FALSE(values.ok()) << why;
  EXPECT_EQ(values.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(values.status().message()), HasSubstr(why));
}

TEST(LlamaTokenizerTest, ByteLevel) {
  const auto values = Values(ByteLevelJson());
  EXPECT_EQ(Find<std::string>(values, "model"), "gpt2");
  EXPECT_EQ(Find<std::string>(values, "pre"), "gpt-2");
  EXPECT_EQ(Find<std::vector<std::string>>(values, "merges"),
            std::vector<std::string>{"a b"});
  const auto tokens = Find<std::vector<std::string>>(values, "tokens");
  const auto types = Find<std::vector<int32_t>>(values, "token_type");
  ASSERT_EQ(tokens.size(), 300);
  ASSERT_EQ(types.size(), 300);
  EXPECT_EQ(tokens[97], "a");
  EXPECT_EQ(tokens[32], "\u0120");
  EXPECT_EQ(tokens[256], "ab");
  EXPECT_EQ(types[256], 1);
  EXPECT_EQ(tokens[257], "<|end|>");
  EXPECT_EQ(types[257], 3);
  // Rows of the embedding without a token.
  EXPECT_EQ(tokens[299], "[PAD299]");
  EXPECT_EQ(types[299], 5);
  EXPECT_FALSE(Find<bool>(values, "add_bos_token"));
}

TEST(LlamaTokenizerTest, WaysOfSplittingHaveNames) {
  Json json = ByteLevelJson();
  SplitBy(kLlama3, &json);
  EXPECT_EQ(Pre(json), "dbrx");
  json["model"]["ignore_merges"] = true;
  EXPECT_EQ(Pre(json), "llama-bpe");
  SplitBy(kQwen2, &json);
  ExpectRefused(json, "--pre=NAME");
  json["model"]["ignore_merges"] = false;
  EXPECT_EQ(Pre(json), "qwen2");
  json = ByteLevelJson();
  const Json by_gpt2 = json["pre_tokenizer"];
  json["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Digits"}, {"individual_digits", true}}, by_gpt2}}};
  EXPECT_EQ(Pre(json), "smollm");
  // Of bytes without merges: any.
  EXPECT_EQ(Pre(Json::parse(ByteTokenizerJson())), "gpt-2");
}

TEST(LlamaTokenizerTest, AnUnknownWayIsRefusedUnlessNamed) {
  Json json = ByteLevelJson();
  SplitBy("\\p{L}+|\\p{N}", &json);
  ExpectRefused(json, "pre_tokenizer: llama.cpp's name for this way");
  EXPECT_EQ(Find<std::string>(Values(json, "mine"), "pre"), "mine");
}

TEST(LlamaTokenizerTest, SentencePiece) {
  const auto values = Values(SentencePieceJson());
  EXPECT_EQ(Find<std::string>(values, "model"), "llama");
  EXPECT_TRUE(Find<bool>(values, "add_space_prefix"));
  const auto types = Find<std::vector<int32_t>>(values, "token_type");
  EXPECT_EQ(types[0], 2);
  EXPECT_EQ(types[1], 6);
  EXPECT_EQ(types[260], 1);
  const auto scores = Find<std::vector<float>>(values, "scores");
  EXPECT_EQ(scores[260], 0.0f);
  EXPECT_EQ(scores[261], -1.0f);
  EXPECT_EQ(scores[262], -2.0f);
}

TEST(LlamaTokenizerTest, MergesThatNoScoresCanSay) {
  Json json = SentencePieceJson();
  json["model"]["merges"].erase(3);
  ExpectRefused(json, "\"\u2581a\" and \"b\" don't merge");
  json = SentencePieceJson();
  std::swap(json["model"]["merges"][1], json["model"]["merges"][2]);
  ExpectRefused(json, "aren't together");
}

TEST(LlamaTokenizerTest, Notes) {
  EXPECT_THAT(Notes(ByteLevelJson()),
              ElementsAre(HasSubstr("no begin and no end token: llama.cpp")));
  Json json = SentencePieceJson();
  EXPECT_THAT(Notes(json), IsEmpty());
  json["normalizer"] = nullptr;
  json["pre_tokenizer"] = {{"type", "Metaspace"},
                           {"replacement", "\u2581"},
                           {"prepend_scheme", "first"},
                           {"split", false}};
  EXPECT_THAT(Notes(json), ElementsAre(kSpaceNote));
}

TEST(LlamaTokenizerTest, WhatLlamaCppHasNot) {
  Json json = ByteLevelJson();
  json["normalizer"] = {{"type", "Lowercase"}};
  ExpectRefused(json, "normalizer: llama.cpp has no \"Lowercase\"");
  EXPECT_THAT(Values(ByteLevelJson(), "", 200).status().ToString(),
              HasSubstr("it has 258 tokens, and the model's embedding 200"));
  json = SentencePieceJson();
  json["model"]["byte_fallback"] = false;
  ExpectRefused(json, "neither bytes nor");
}

}  // namespace
}  // namespace capstan
