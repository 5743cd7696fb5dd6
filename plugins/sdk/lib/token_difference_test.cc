// SPDX-License-Identifier: Apache-2.0
#include "plugins/sdk/lib/token_difference.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "plugins/sdk/lib/byte_tokenizer.h"

namespace capstan {
namespace {

using Json = nlohmann::json;

std::unique_ptr<Tokenizer> Load(const Json& json,
                                const Json& config = Json::object()) {
  const std::string folder = ::testing::TempDir() + "/tokenizer";
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/tokenizer.json") << json.dump();
  std::ofstream(folder + "/tokenizer_config.json") << config.dump();
  auto loaded = LoadTokenizer(folder);
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  return *std::move(loaded);
}

// Bytes, "ab" and "bc".
Json Merging() {
  Json json = Json::parse(ByteTokenizerJson());
  json["model"]["vocab"]["ab"] = 256;
  json["model"]["vocab"]["abc"] = 257;
  json["model"]["vocab"]["bc"] = 258;
  json["model"]["merges"] = {"a b", "b c", "ab c"};
  return json;
}

TEST(TokenDifferenceTest, OfTheSameTokensThereIsNone) {
  EXPECT_EQ(TokenDifference(*NewByteTokenizer(),
                            *Load(Json::parse(ByteTokenizerJson()))),
            "");
  // Written in another way, padded, and with another template.
  Json other = Merging();
  other["model"]["merges"] =
      Json::array({Json::array({"a", "b"}), Json::array({"b", "c"}),
                   Json::array({"ab", "c"})});
  other["truncation"] = {{"max_length", 8}};
  EXPECT_EQ(TokenDifference(*Load(Merging()), *Load(other)), "");
}

TEST(TokenDifferenceTest, SaysWhere) {
  const auto tokenizer = Load(Merging());
  EXPECT_EQ(TokenDifference(*tokenizer, *NewByteTokenizer()),
            "id 256 is \"ab\" in the one and no token in the other");
  Json other = Merging();
  std::swap(other["model"]["vocab"]["a"], other["model"]["vocab"]["\u010a"]);
  EXPECT_EQ(TokenDifference(*tokenizer, *Load(other)),
            "id 10 is \"\\n\" in the one and \"a\" in the other");
  other = Merging();
  other["model"]["merges"] = Json::array({"a b"});
  EXPECT_EQ(TokenDifference(*tokenizer, *Load(other)),
            "\"abc\" has other tokens in the one than in the other");
  other = Merging();
  other["pre_tokenizer"]["add_prefix_space"] = true;
  EXPECT_NE(TokenDifference(*tokenizer, *Load(other)), "");
  // Characters, and two spaces are one.
  Json characters = Merging();
  characters["pre_tokenizer"] = nullptr;
  characters["decoder"] = {{"type", "Fuse"}};
  characters["model"]["vocab"] = {{"a", 0}, {" ", 1}};
  characters["model"]["merges"] = Json::array();
  other = characters;
  other["normalizer"] = {
      {"type", "Replace"}, {"pattern", {{"String", "  "}}}, {"content", " "}};
  EXPECT_EQ(TokenDifference(*Load(characters), *Load(other)),
            "words are split in other ways in the one than in the other");
}

TEST(TokenDifferenceTest, EndsAndTemplateAreComparedApart) {
  const auto with = [](const Json& config, bool adds = false) {
    Json json = Merging();
    for (const auto& [id, content] :
         {std::make_pair(259, "<a>"), std::make_pair(260, "<b>")}) {
      json["added_tokens"].push_back({{"id", id},
                                      {"content", content},
                                      {"single_word", false},
                                      {"lstrip", false},
                                      {"rstrip", false},
                                      {"normalized", false},
                                      {"special", true}});
    }
    if (adds) {
      json["post_processor"] = Json::parse(
          R"({"type": "TemplateProcessing", "pair": [], "single": [)"
          R"({"SpecialToken": {"id": "<a>", "type_id": 0}}, )"
          R"({"Sequence": {"id": "A", "type_id": 0}}], "special_tokens": )"
          R"({"<a>": {"id": "<a>", "ids": [259], "tokens": ["<a>"]}}})");
    }
    return Load(json, config);
  };
  const auto plain = with({{"eos_token", "<a>"}, {"chat_template", "x"}});
  EXPECT_EQ(EndsDifference(
                *plain, *with({{"chat_template", "x"}, {"eos_token", "<a>"}})),
            "");
  const auto differs = [&](const std::unique_ptr<Tokenizer>& other,
                           const std::string& how) {
    EXPECT_EQ(TokenDifference(*plain, *other), "");
    EXPECT_EQ(EndsDifference(*plain, *other), how);
  };
  differs(with({{"eos_token", "<b>"}, {"chat_template", "x"}}),
          "the end token is \"<a>\" in the one and \"<b>\" in the other");
  differs(with({{"chat_template", "x"}}),
          "the end token is \"<a>\" in the one and no token in the other");
  differs(with({{"eos_token", "<a>"}, {"chat_template", "x"}}, /*adds=*/true),
          "the one adds other tokens at the ends of a text than the other");
  differs(with({{"eos_token", "<a>"}, {"chat_template", "y"}}),
          "the chat template of the one isn't the other's");
}

}  // namespace
}  // namespace capstan
