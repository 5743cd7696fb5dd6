// SPDX-License-Identifier: Apache-2.0
#include "plugins/objective/common/sample_token.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/status.h"

namespace capstan {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The share of [0, 1) that leads to each token.
std::map<int64_t, double> Shares(const std::vector<float>& logits,
                                 const SamplerOptions& options) {
  constexpr int kPoints = 10000;
  std::map<int64_t, double> shares;
  for (int i = 0; i < kPoints; ++i) {
    const auto token = SampleToken(logits, options, (i + 0.5) / kPoints);
    EXPECT_TRUE(token.ok()) << token.status();
    shares[*token] += 1.0 / kPoints;
  }
  return shares;
}

const std::vector<float> kLogits = {1.0f, 3.0f, 0.0f, 2.0f};

TEST(SampleTokenTest, SharesAreTheSoftmax) {
  double total = 0.0;
  for (float x : kLogits) total += std::exp(x);
  const auto shares = Shares(kLogits, {});
  ASSERT_EQ(shares.size(), 4u);
  for (const auto& [token, share] : shares) {
    EXPECT_NEAR(share, std::exp(kLogits[token]) / total, 2e-4);
  }
}

TEST(SampleTokenTest, TemperatureDividesTheLogits) {
  SamplerOptions options;
  options.temperature = 0.5;
  const auto shares = Shares(kLogits, options);
  EXPECT_NEAR(shares.at(3) / shares.at(1), std::exp(-2.0), 1e-3);
}

// A float would be 0 or infinite.
TEST(SampleTokenTest, TemperaturesBeyondFloats) {
  SamplerOptions options;
  options.temperature = 1e-50;
  auto shares = Shares(kLogits, options);
  ASSERT_EQ(shares.size(), 1u);
  EXPECT_EQ(shares.begin()->first, 1);
  options.temperature = 1e300;
  shares = Shares({1.0f, -kInfinity, 3.0f}, options);
  ASSERT_EQ(shares.size(), 2u);
  EXPECT_NEAR(shares.at(0), 0.5, 2e-4);
  EXPECT_NEAR(shares.at(2), 0.5, 2e-4);
}

TEST(SampleTokenTest, MinPIsAShareOfTheLikeliest) {
  SamplerOptions options;
  options.min_p = std::exp(-1.5);
  auto shares = Shares(kLogits, options);
  ASSERT_EQ(shares.size(), 2u);
  EXPECT_NEAR(shares.at(3) / shares.at(1), std::exp(-1.0), 1e-3);
  // After the temperature.
  options.temperature = 0.5;
  EXPECT_EQ(Shares(kLogits, options).size(), 1u);
  // Of what top_k and top_p leave.
  options = {};
  options.min_p = std::exp(-2.5);
  options.top_k = 2;
  EXPECT_EQ(Shares(kLogits, options).size(), 2u);
}

// The set that sorting the whole vocabulary gives, ties by lower id.
TEST(SampleTokenTest, TopPIsThatOfTheSortedVocabulary) {
  std::mt19937 random(3);
  for (const double top_p : {0.1, 0.5, 0.9, 0.999}) {
    for (const int spread : {0, 1, 6}) {
      std::vector<float> logits(500);
      for (float& x : logits) {
        x = static_cast<float>(static_cast<int>(random() % 64) * spread) / 16;
      }
      std::vector<int64_t> order(logits.size());
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
        return logits[a] > logits[b];
      });
      double total = 0.0, sum = 0.0;
      for (const float x : logits) total += std::exp(x - logits[order[0]]);
      size_t kept = 0;
      while (sum < top_p * total - 1e-9) {
        sum += std::exp(logits[order[kept++]] - logits[order[0]]);
      }
      SamplerOptions options;
      options.top_p = top_p;
      EXPECT_EQ(*SampleToken(logits, options, 1.0 - 1e-9), order[kept - 1])
          << top_p << " " << spread;
      EXPECT_EQ(*SampleToken(logits, options, 0.0), order[0]);
    }
  }
}

std::vector<float> AfterRules(const LogitRules& rules,
                              const std::vector<int64_t>& text, int64_t prompt,
                              std::vector<float> logits) {
  ApplyRules(rules, text, prompt, /*ends=*/{0}, absl::MakeSpan(logits));
  return logits;
}

TEST(ApplyRulesTest, WhatTheTextHasIsLessLikely) {
  LogitRules rules;
  EXPECT_FALSE(rules.any());
  rules.repetition_penalty = 2.0;
  EXPECT_TRUE(rules.any());
  // Once, however often it is there; in the prompt, too.
  EXPECT_EQ(AfterRules(rules, {1, 3, 1}, 2, {4.0f, 2.0f, 1.0f, -2.0f}),
            (std::vector<float>{4.0f, 1.0f, 1.0f, -4.0f}));
}

TEST(ApplyRulesTest, NoRunComesTwice) {
  LogitRules rules;
  rules.no_repeat_ngram_size = 2;
  EXPECT_EQ(AfterRules(rules, {1, 2, 1, 3, 1}, 1, {0.0f, 0.0f, 0.0f, 0.0f}),
            (std::vector<float>{0.0f, 0.0f, -kInfinity, -kInfinity}));
  rules.no_repeat_ngram_size = 1;
  EXPECT_EQ(AfterRules(rules, {1}, 1, {0.0f, 0.0f}),
            (std::vector<float>{0.0f, -kInfinity}));
  rules.no_repeat_ngram_size = 4;
  EXPECT_EQ(AfterRules(rules, {1, 1, 1}, 1, {0.0f, 0.0f}),
            (std::vector<float>{0.0f, 0.0f}));
}

TEST(ApplyRulesTest, ForbiddenTokens) {
  LogitRules rules;
  rules.suppress_tokens = {2, 99, -1};
  rules.begin_suppress_tokens = {1};
  rules.min_new_tokens = 2;
  EXPECT_EQ(AfterRules(rules, {3}, 1, {0.0f, 0.0f, 0.0f, 0.0f}),
            (std::vector<float>{-kInfinity, -kInfinity, -kInfinity, 0.0f}));
  EXPECT_EQ(AfterRules(rules, {3, 3}, 1, {0.0f, 0.0f, 0.0f, 0.0f}),
            (std::vector<float>{-kInfinity, 0.0f, -kInfinity, 0.0f}));
  EXPECT_EQ(AfterRules(rules, {3, 3, 3}, 1, {0.0f, 0.0f, 0.0f, 0.0f}),
            (std::vector<float>{0.0f, 0.0f, -kInfinity, 0.0f}));
}

TEST(ApplyRulesTest, NothingLeftIsAnError) {
  SamplerOptions options;
  options.rules.no_repeat_ngram_size = 1;
  const auto token = SampleToken({-kInfinity, -kInfinity}, options, 0.5);
  EXPECT_THAT(std::string(token.status().message()),
              ::testing::HasSubstr("no_repeat_ngram_size"));
}

TEST(SampleTokenTest, TopKKeepsTheLikeliest) {
  SamplerOptions options;
  options.top_k = 2;
  const auto shares = Shares(kLogits, options);
  ASSERT_EQ(shares.size(), 2u);
  EXPECT_NEAR(shares.at(3) / shares.at(1), std::exp(-1.0), 1e-3);
  options.top_k = 9;
  EXPECT_EQ(Shares(kLogits, options).size(), 4u);
}

TEST(SampleTokenTest, TopPKeepsTheLeastSetThatReachesIt) {
  // Probabilities 0.64, 0.24, 0.09, 0.03.
  SamplerOptions options;
  options.top_p = 0.6;
  EXPECT_EQ(Shares(kLogits, options).size(), 1u);
  options.top_p = 0.7;
  EXPECT_EQ(Shares(kLogits, options).size(), 2u);
  options.top_p = 0.9;
  EXPECT_EQ(Shares(kLogits, options).size(), 3u);
  options.top_p = 0.99;
  EXPECT_EQ(Shares(kLogits, options).size(), 4u);
}

TEST(SampleTokenTest, TopPAppliesToWhatTopKLeaves) {
  SamplerOptions options;
  options.top_k = 2;    // 0.73, 0.27 of what is left
  options.top_p = 0.7;  // so one is enough
  EXPECT_EQ(Shares(kLogits, options).size(), 1u);
}

TEST(SampleTokenTest, GreedyTakesTheFirstOfTheGreatest) {
  SamplerOptions options;
  options.greedy = true;
  EXPECT_EQ(*SampleToken({0.0f, 5.0f, 5.0f}, options, 0.99), 1);
  options.greedy = false;
  options.temperature = 0.0;
  EXPECT_EQ(*SampleToken({0.0f, 5.0f, 5.0f}, options, 0.99), 1);
}

TEST(SampleTokenTest, NanIsNeverDrawn) {
  EXPECT_EQ(Shares({kNan, 1.0f, 1.0f, kNan}, {}).size(), 2u);
  SamplerOptions options;
  options.greedy = true;
  EXPECT_EQ(*SampleToken({kNan, 1.0f, 2.0f}, options, 0.0), 2);
}

TEST(SampleTokenTest, WithoutAFiniteLogitThereIsAnError) {
  EXPECT_FALSE(SampleToken({kNan, kNan}, {}, 0.5).ok());
  EXPECT_FALSE(SampleToken({kInfinity, 0.0f}, {}, 0.5).ok());
  EXPECT_FALSE(SampleToken({}, {}, 0.5).ok());
}

TEST(SampleTokenTest, OptionsOutOfRangeNameTheirField) {
  EXPECT_TRUE(CheckSamplerOptions({}).ok());
  EXPECT_EQ(FieldOf(CheckSamplerOptions({-1.0})), "temperature");
  EXPECT_EQ(FieldOf(CheckSamplerOptions({kNan})), "temperature");
  EXPECT_EQ(FieldOf(CheckSamplerOptions({1.0, -1})), "top_k");
  EXPECT_EQ(FieldOf(CheckSamplerOptions({1.0, 0, 0.0})), "top_p");
  EXPECT_EQ(FieldOf(CheckSamplerOptions({1.0, 0, 1.5})), "top_p");
  EXPECT_EQ(FieldOf(CheckSamplerOptions({1.0, 0, 1.0, false, 1.5})), "min_p");
  SamplerOptions options;
  options.rules.repetition_penalty = 0.0;
  EXPECT_EQ(FieldOf(CheckSamplerOptions(options)), "repetition_penalty");
}

}  // namespace
}  // namespace capstan
