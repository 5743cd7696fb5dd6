// SPDX-License-Identifier: Apache-2.0
#include "plugins/objective/common/causal_sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
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

TEST(SamplerTest, SharesAreTheSoftmax) {
  double total = 0.0;
  for (float x : kLogits) total += std::exp(x);
  const auto shares = Shares(kLogits, {});
  ASSERT_EQ(shares.size(), 4u);
  for (const auto& [token, share] : shares) {
    EXPECT_NEAR(share, std::exp(kLogits[token]) / total, 2e-4);
  }
}

TEST(SamplerTest, TemperatureDividesTheLogits) {
  SamplerOptions options;
  options.temperature = 0.5;
  const auto shares = Shares(kLogits, options);
  EXPECT_NEAR(shares.at(3) / shares.at(1), std::exp(-2.0), 1e-3);
}

TEST(SamplerTest, TopKKeepsTheLikeliest) {
  SamplerOptions options;
  options.top_k = 2;
  const auto shares = Shares(kLogits, options);
  ASSERT_EQ(shares.size(), 2u);
  EXPECT_NEAR(shares.at(3) / shares.at(1), std::exp(-1.0), 1e-3);
  options.top_k = 9;
  EXPECT_EQ(Shares(kLogits, options).size(), 4u);
}

TEST(SamplerTest, TopPKeepsTheLeastSetThatReachesIt) {
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

TEST(SamplerTest, TopPAppliesToWhatTopKLeaves) {
  SamplerOptions options;
  options.top_k = 2;    // 0.73, 0.27 of what is left
  options.top_p = 0.7;  // so one is enough
  EXPECT_EQ(Shares(kLogits, options).size(), 1u);
}

TEST(SamplerTest, GreedyTakesTheFirstOfTheGreatest) {
  SamplerOptions options;
  options.greedy = true;
  EXPECT_EQ(*SampleToken({0.0f, 5.0f, 5.0f}, options, 0.99), 1);
  options.greedy = false;
  options.temperature = 0.0;
  EXPECT_EQ(*SampleToken({0.0f, 5.0f, 5.0f}, options, 0.99), 1);
}

TEST(SamplerTest, NanIsNeverDrawn) {
  EXPECT_EQ(Shares({kNan, 1.0f, 1.0f, kNan}, {}).size(), 2u);
  SamplerOptions options;
  options.greedy = true;
  EXPECT_EQ(*SampleToken({kNan, 1.0f, 2.0f}, options, 0.0), 2);
}

TEST(SamplerTest, WithoutAFiniteLogitThereIsAnError) {
  EXPECT_FALSE(SampleToken({kNan, kNan}, {}, 0.5).ok());
  EXPECT_FALSE(SampleToken({kInfinity, 0.0f}, {}, 0.5).ok());
  EXPECT_FALSE(SampleToken({}, {}, 0.5).ok());
}

TEST(SamplerTest, OptionsOutOfRangeNameTheirField) {
  EXPECT_TRUE(CheckSamplerOptions({}).ok());
  EXPECT_EQ(FieldOf(CheckSamplerOptions({-1.0})), "temperature");
  EXPECT_EQ(FieldOf(CheckSamplerOptions({kNan})), "temperature");
  EXPECT_EQ(FieldOf(CheckSamplerOptions({1.0, -1})), "top_k");
  EXPECT_EQ(FieldOf(CheckSamplerOptions({1.0, 0, 0.0})), "top_p");
  EXPECT_EQ(FieldOf(CheckSamplerOptions({1.0, 0, 1.5})), "top_p");
}

}  // namespace
}  // namespace capstan
