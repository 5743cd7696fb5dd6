// SPDX-License-Identifier: Apache-2.0
//
// Tokenizers against Hugging Face's: testdata/ holds what tokenizers 0.23.3
// made of hard strings, with the tokens that it puts around a text.
#include "plugins/sdk/tokenizer.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace capstan {
namespace {

class TokenizerGoldenTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string folder =
        std::string("tests/golden/testdata/") + GetParam();
    cases_ = nlohmann::json::parse(std::ifstream(folder + "/golden.json"));
    auto tokenizer = LoadTokenizer(folder);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
  }

  nlohmann::json cases_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_P(TokenizerGoldenTest, IdsAndDecodedTexts) {
  ASSERT_GT(cases_.size(), 20);
  for (const nlohmann::json& golden : cases_) {
    const std::string text = golden["text"];
    std::vector<int64_t> ids = tokenizer_->Encode(text);
    tokenizer_->AddEnds(&ids);
    EXPECT_EQ(ids, golden["ids"].get<std::vector<int64_t>>()) << text;
    EXPECT_EQ(tokenizer_->Decode(ids), golden["decoded"]) << text;
  }
}

TEST_P(TokenizerGoldenTest, PlacesAreWhatTokensDecodeTo) {
  for (const nlohmann::json& golden : cases_) {
    const std::string text = golden["text"];
    const Encoding encoding = tokenizer_->EncodeWithPlaces(text);
    EXPECT_EQ(encoding.ids, tokenizer_->Encode(text));
    int64_t end = 0;
    for (size_t i = 0; i < encoding.ids.size(); ++i) {
      const std::string decoded = tokenizer_->Decode({encoding.ids[i]});
      const std::string place = text.substr(
          encoding.begins[i], encoding.ends[i] - encoding.begins[i]);
      // A token that is a part of a character has all of it.
      EXPECT_NE(place.find(decoded), std::string::npos) << text;
      EXPECT_LE(encoding.begins[i], end) << text;
      end = encoding.ends[i];
    }
    EXPECT_EQ(end, static_cast<int64_t>(text.size()));
  }
}

TEST_P(TokenizerGoldenTest, PartsJoin) {
  for (const nlohmann::json& golden : cases_) {
    std::string joined;
    for (int64_t id : golden["ids"]) joined += tokenizer_->Decode({id});
    EXPECT_EQ(joined, golden["decoded"]);
  }
}

INSTANTIATE_TEST_SUITE_P(All, TokenizerGoldenTest,
                         testing::Values("tokenizer_smollm",
                                         "tokenizer_gemma"));

}  // namespace
}  // namespace capstan
