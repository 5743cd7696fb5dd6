// SPDX-License-Identifier: Apache-2.0
//
// Expected values are those of lm_eval 0.4.13 and scikit-learn.
#include "inference/evaluate/aggregate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace capstan::evaluate {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;
using Values = std::vector<Json>;

double Of(const char* aggregation, const Values& values) {
  const auto number = Aggregate(aggregation, values);
  EXPECT_TRUE(number.ok()) << number.status();
  return number.ok() ? number->value : -1.0;
}

TEST(AggregateTest, Numbers) {
  const Values values = {1, 0, true, 1, 0.5};
  const auto mean = Aggregate("mean", values);
  EXPECT_DOUBLE_EQ(mean->value, 0.7);
  EXPECT_DOUBLE_EQ(*mean->standard_error, 0.2);
  EXPECT_FALSE(Aggregate("mean", {1})->standard_error.has_value());
  EXPECT_EQ(Of("median", values), 1.0);
  EXPECT_EQ(Of("nanmean", {1, nullptr, 3}), 2.0);
  EXPECT_DOUBLE_EQ(Of("perplexity", {-1.5, -2.5}), 7.38905609893065);
  const Values weighted = {{-10.0, 4}, {-3.0, 2}};
  EXPECT_DOUBLE_EQ(Of("weighted_perplexity", weighted), 8.72913836372013);
  EXPECT_DOUBLE_EQ(Of("bits_per_byte", weighted), 3.1258392552594207);
  EXPECT_NEAR(Of("brier_score", {{0, {.7, .3}}, {1, {.4, .6}}}), 0.25, 1e-15);
  EXPECT_DOUBLE_EQ(
      Of("likelihood_diff", {{1, {-3.0, -1.0, -4.0}}, {0, {-2.0, -1.0}}}),
      0.75);
}

TEST(AggregateTest, Classes) {
  const Values two = {{1, 1}, {0, 1}, {1, 0}, {1, 1}, {0, 0}};
  EXPECT_DOUBLE_EQ(Of("f1", two), 2.0 / 3);
  EXPECT_DOUBLE_EQ(Of("matthews_corrcoef", two), 1.0 / 6);
  const Values three = {{0, 0}, {1, 2}, {2, 2}, {1, 1}, {0, 2},
                        {2, 2}, {2, 0}, {0, 0}, {1, 0}};
  EXPECT_DOUBLE_EQ(Of("macro_f1", three), 0.5476190476190476);
  EXPECT_DOUBLE_EQ(Of("micro_f1", three), 0.5555555555555556);
  EXPECT_DOUBLE_EQ(Of("weighted_f1", three), 0.5476190476190477);
  EXPECT_DOUBLE_EQ(Of("matthews_corrcoef", three), 0.3535533905932738);
  const auto f1 = Aggregate("f1", three);
  ASSERT_FALSE(f1.ok());
  EXPECT_THAT(std::string(f1.status().message()), HasSubstr("two classes"));
}

TEST(AggregateTest, ValuesOfAnotherShapeAreErrors) {
  const Json choices = {0, {0.5, 0.5}};
  const std::pair<const char*, Json> kCases[] = {
      {"mean", choices},
      {"mean", "text"},
      {"perplexity", {-1.5, 2}},
      {"weighted_perplexity", 1.0},
      {"bits_per_byte", choices},
      {"f1", 0.8},
      {"macro_f1", {1}},
      {"matthews_corrcoef", true},
      {"brier_score", {1, 1}},
      {"brier_score", {2, {0.5, 0.5}}},
      {"brier_score", {{0, 1}, {0.5, 0.5}}},
      {"likelihood_diff", {-1, {0.5, 0.5}}},
      {"likelihood_diff", {0, {"a", 0.5}}}};
  for (const auto& [aggregation, value] : kCases) {
    const auto number = Aggregate(aggregation, {value});
    ASSERT_FALSE(number.ok()) << aggregation << " " << value;
    EXPECT_THAT(std::string(number.status().message()),
                HasSubstr(std::string(aggregation) + " sums up "));
  }
  EXPECT_EQ(Of("bypass", {"text"}), 999.0);
}

TEST(AggregateTest, Groups) {
  const std::vector<Share> shares = {{0.5, 0.1, 10}, {0.25, 0.05, 30}};
  const TaskNumber by_size = AggregateShares(shares, true);
  EXPECT_DOUBLE_EQ(by_size.value, 0.3125);
  EXPECT_DOUBLE_EQ(*by_size.standard_error, 0.04497806482930845);
  const TaskNumber plain = AggregateShares(shares, false);
  EXPECT_DOUBLE_EQ(plain.value, 0.375);
  EXPECT_DOUBLE_EQ(*plain.standard_error, 0.05590169943749475);
  EXPECT_FALSE(AggregateShares({{0.5, absl::nullopt, 2}, {0.25, 0.1, 2}}, true)
                   .standard_error.has_value());
}

}  // namespace
}  // namespace capstan::evaluate
