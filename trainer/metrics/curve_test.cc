// SPDX-License-Identifier: Apache-2.0
#include "trainer/metrics/curve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

namespace capstan {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Metrics(int64_t steps) {
  const std::string path = ::testing::TempDir() + "/metrics.jsonl";
  std::ofstream file(path);
  for (int64_t step = 1; step <= steps; ++step) {
    file << "{\"step\": " << step
         << ", \"loss\": " << (step == 2 ? "null" : std::to_string(4.0 / step))
         << "}\n";
    if (step % 2 == 0) {
      file << "{\"step\": " << step << ", \"eval_loss\": 1.5}\n";
    }
  }
  file << "{\"step\": 9";  // a crash
  return path;
}

TEST(LossCurveTest, ReadsLossesWithoutThoseThatArentFinite) {
  const auto curves = ReadLossCurves(Metrics(5));
  ASSERT_TRUE(curves.ok()) << curves.status();
  ASSERT_EQ(curves->train.size(), 4);
  EXPECT_EQ(curves->train[1].step, 3);
  EXPECT_NEAR(curves->train[1].loss, 4.0 / 3, 1e-6);
  ASSERT_EQ(curves->eval.size(), 2);
  EXPECT_EQ(curves->eval[1].step, 4);
}

TEST(LossCurveTest, LongRunsAreThinnedOut) {
  const auto curves = ReadLossCurves(Metrics(9000));
  ASSERT_TRUE(curves.ok()) << curves.status();
  EXPECT_LE(curves->train.size(), 2000);
  EXPECT_GE(curves->train.size(), 1500);
}

TEST(LossCurveTest, DrawsWithinThePicture) {
  LossCurves curves;
  curves.train = {{1, 4.0}, {50, 2.0}, {100, 1.0}};
  const std::string svg = LossCurveSvg(curves);
  EXPECT_THAT(svg, HasSubstr("points=\"56.0,"));
  EXPECT_THAT(svg, HasSubstr(" 624.0,"));  // the last step at the right
  EXPECT_THAT(svg, HasSubstr("training loss"));
  EXPECT_THAT(svg, Not(HasSubstr("evaluation loss")));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  curves.eval = {{100, 1.5}};
  EXPECT_THAT(LossCurveSvg(curves), HasSubstr("evaluation loss"));
}

TEST(LossCurveTest, OnePointOrNone) {
  EXPECT_EQ(LossCurveSvg({}), "");
  LossCurves one;
  one.train = {{1, 0.0}};
  EXPECT_THAT(LossCurveSvg(one), Not(HasSubstr("nan")));
  EXPECT_EQ(ReadLossCurves("/nowhere/metrics.jsonl")->train.size(), 0);
}

TEST(CurveTest, WhatIsMeasuredInEachEvaluation) {
  const MeasuredCurve early = {"return", "episode", "mean return", {1.0, 2.0}};
  const MeasuredCurve late = {"return", "episode", "mean return", {3.0, 9.0}};
  EXPECT_EQ(MeasuredCurvesSvg({}), "");
  const std::string svg = MeasuredCurvesSvg({{50, early}, {100, late}});
  EXPECT_THAT(svg, ::testing::HasSubstr("mean return after step 100"));
  EXPECT_THAT(svg, ::testing::HasSubstr(">episode<"));
  size_t lines = 0;
  for (size_t at = svg.find("<polyline"); at != std::string::npos;
       at = svg.find("<polyline", at + 1)) {
    ++lines;
  }
  EXPECT_EQ(lines, 2);
}

}  // namespace
}  // namespace capstan
