// SPDX-License-Identifier: Apache-2.0
#include "desk/watch/curves.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"

namespace capstan {
namespace {

using nlohmann::json;

TEST(CurvesTest, AFewStepsAreKeptAsTheyAre) {
  Curves curves(8);
  for (int step = 1; step <= 3; ++step) {
    curves.Add(step, "step", step);
    curves.Add(step, "loss", 1.0 / step);
  }
  curves.Add(2, "eval_loss", 4.0);
  EXPECT_EQ(
      curves.AsJson(100),
      json({{"width", 1},
            {"from", 0},
            {"series",
             {{"step", {{"at", {1, 2, 3}}, {"mean", {1.0, 2.0, 3.0}}}},
              {"loss", {{"at", {1, 2, 3}}, {"mean", {1.0, 0.5, 0.333333}}}},
              {"eval_loss", {{"at", {2}}, {"mean", {4.0}}}}}},
            {"left_out", 0}}));
}

// A run may log a number for each of 100,000 parameters.
TEST(CurvesTest, KeepsTheFirstNamesAndCountsTheOthers) {
  Curves curves(8);
  constexpr int kNames = 100000;
  for (int step = 1; step <= 2; ++step) {
    for (int i = 0; i < kNames; ++i) {
      curves.Add(step, absl::StrCat("norm_of_", i), step);
    }
  }
  EXPECT_EQ(curves.all().size(), Curves::kMostSeries);
  EXPECT_EQ(curves.left_out(), kNames - Curves::kMostSeries);
  EXPECT_EQ(curves.Find("norm_of_3")->buckets.size(), 2);
  EXPECT_EQ(curves.Find("norm_of_50000"), nullptr);
  EXPECT_EQ(curves.AsJson(8)["left_out"], kNames - Curves::kMostSeries);
  curves.Clear();
  EXPECT_EQ(curves.left_out(), 0);
  curves.Add(1, std::string(1 << 20, 'x'), 1.0);
  EXPECT_TRUE(curves.all().empty());
}

TEST(CurvesTest, LongRunsAreInBoundedMemoryAndLoseNoExtreme) {
  Curves curves(64);
  double sum = 0.0;
  for (int64_t step = 0; step < 100000; ++step) {
    const double value = step == 77777 ? 50.0 : step == 5 ? -50.0 : step % 10;
    curves.Add(step, "loss", value);
    sum += value;
  }
  const Curves::Series* const loss = curves.Find("loss");
  ASSERT_NE(loss, nullptr);
  EXPECT_LE(loss->buckets.size(), 64);
  EXPECT_GT(loss->buckets.size(), 32);
  double found = 0.0;
  int64_t count = 0;
  float low = 0.0f, high = 0.0f;
  for (const CurveBucket& bucket : loss->buckets) {
    found += bucket.sum;
    count += bucket.count;
    low = std::min(low, bucket.low);
    high = std::max(high, bucket.high);
    if (bucket.high == 50.0f) {
      EXPECT_EQ(bucket.at, 77777 / curves.width());
    }
  }
  EXPECT_EQ(count, 100000);
  EXPECT_DOUBLE_EQ(found, sum);
  EXPECT_EQ(low, -50.0f);
  EXPECT_EQ(high, 50.0f);
}

TEST(CurvesTest, JsonHasNoMorePointsThanAskedFor) {
  Curves curves(1024);
  for (int step = 0; step < 1000; ++step) curves.Add(step, "loss", step % 4);
  const json made = curves.AsJson(100);
  EXPECT_EQ(made["width"], 16);
  const json& loss = made["series"]["loss"];
  EXPECT_EQ(loss["at"].size(), 63);
  EXPECT_EQ(loss["mean"][0], 1.5);
  EXPECT_EQ(loss["low"][0], 0.0);
  EXPECT_EQ(loss["high"][0], 3.0);
}

// What a page gets that has the steps before.
TEST(CurvesTest, OnlyWhatHasChanged) {
  Curves curves(1024);
  for (int step = 0; step < 20; ++step) curves.Add(step, "loss", step);
  const json made = curves.AsJson(10, /*since=*/17);
  EXPECT_EQ(made["width"], 2);
  EXPECT_EQ(made["from"], 8);
  EXPECT_EQ(made["series"]["loss"]["at"], json({8, 9}));
  EXPECT_EQ(made["series"]["loss"]["mean"], json({16.5, 18.5}));
}

TEST(CurvesTest, AStepThatComesAgainOrLate) {
  Curves curves(16);
  curves.Add(5, "loss", 1.0);
  curves.Add(3, "loss", 2.0);
  curves.Add(5, "loss", 3.0);
  const json loss = curves.AsJson(16)["series"]["loss"];
  EXPECT_EQ(loss["at"], json({3, 5}));
  EXPECT_EQ(loss["mean"], json({2.0, 2.0}));
  EXPECT_EQ(loss["high"], json({2.0, 3.0}));
}

}  // namespace
}  // namespace capstan
