// SPDX-License-Identifier: Apache-2.0
#include "plugins/sdk/lib/generation_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace capstan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(GenerationConfigTest, ReadsWhatTransformersWrites) {
  const auto config = ParseGenerationConfig(R"({
    "_from_model_config": true, "bos_token_id": 1, "eos_token_id": [2, 3],
    "do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95,
    "min_p": 0.05, "repetition_penalty": 1.1, "no_repeat_ngram_size": 3,
    "max_new_tokens": 50, "min_new_tokens": 4, "suppress_tokens": [7, 8],
    "begin_suppress_tokens": [9], "stop_strings": "\n\n", "num_beams": 4,
    "length_penalty": 0.5, "early_stopping": "never",
    "transformers_version": "5.23.0"})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->do_sample, true);
  EXPECT_EQ(config->temperature, 0.6);
  EXPECT_EQ(config->top_k, 20);
  EXPECT_EQ(config->top_p, 0.95);
  EXPECT_EQ(config->min_p, 0.05);
  EXPECT_EQ(config->repetition_penalty, 1.1);
  EXPECT_EQ(config->no_repeat_ngram_size, 3);
  EXPECT_EQ(config->max_new_tokens, 50);
  EXPECT_EQ(config->min_new_tokens, 4);
  EXPECT_THAT(config->suppress_tokens, ElementsAre(7, 8));
  EXPECT_THAT(config->begin_suppress_tokens, ElementsAre(9));
  EXPECT_THAT(config->stop_strings, ElementsAre("\n\n"));
  EXPECT_EQ(config->beams.beams, 4);
  EXPECT_EQ(config->beams.length_penalty, 0.5);
  EXPECT_EQ(config->beams.end, BeamsEnd::kCannotImprove);
  EXPECT_THAT(config->ignored, ElementsAre());
}

TEST(GenerationConfigTest, WhatIsAbsentOrNullIsLeftOpen) {
  for (const char* text : {"", "{}", "{\"top_k\": null}"}) {
    const auto config = ParseGenerationConfig(text);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_FALSE(config->do_sample.has_value());
    EXPECT_FALSE(config->top_k.has_value());
    EXPECT_EQ(config->beams.beams, 1);
  }
}

TEST(GenerationConfigTest, KeysThatWouldChangeATextAreNamed) {
  const auto config = ParseGenerationConfig(
      R"({"typical_p": 0.9, "epsilon_cutoff": 0.0, "guidance_scale": 1,
          "forced_eos_token_id": 2, "bad_words_ids": null})");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->ignored, ElementsAre("forced_eos_token_id", "typical_p"));
}

TEST(GenerationConfigTest, OtherKindsOfValuesAreErrors) {
  for (const char* text :
       {R"({"top_k": "many"})", R"({"suppress_tokens": ["a"]})",
        R"({"do_sample": 1})", R"({"early_stopping": 3})",
        R"({"num_beams": 0})", R"({"stop_strings": [1]})"}) {
    const auto config = ParseGenerationConfig(text);
    ASSERT_FALSE(config.ok()) << text;
    EXPECT_THAT(std::string(config.status().message()),
                HasSubstr("generation_config.json"));
  }
}

}  // namespace
}  // namespace capstan
