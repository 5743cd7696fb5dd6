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

// All lines are labelled: the last above the plot, the others in grey.
TEST(CurveTest, TheLegendNamesTheEarlierEvaluations) {
  const MeasuredCurve curve = {"return", "episode", "mean return", {1.0, 2.0}};
  const auto drawn = [&curve](const std::vector<int64_t>& steps) {
    std::vector<std::pair<int64_t, MeasuredCurve>> curves;
    for (const int64_t step : steps) curves.emplace_back(step, curve);
    return MeasuredCurvesSvg(curves);
  };
  EXPECT_THAT(drawn({50}), Not(HasSubstr("grey")));
  EXPECT_THAT(drawn({50, 100}), HasSubstr(">grey: after step 50<"));
  EXPECT_THAT(drawn({50, 100, 150, 200}),
              HasSubstr(">grey: after steps 50, 100 and 150<"));
  const std::string many = drawn({50, 100, 150, 200, 250, 300, 350});
  EXPECT_THAT(many, HasSubstr(">grey: the 6 before, from step 50 on<"));
  EXPECT_THAT(many, HasSubstr("<title>after step 250</title>"));
}

TEST(LossCurveTest, WhatElseEvaluationsTold) {
  const std::string path = ::testing::TempDir() + "/measured.jsonl";
  std::ofstream(path)
      << "{\"step\": 1, \"eval_loss\": 2, \"eval_acc\": 0.5}\n"
         "{\"step\": 2, \"eval_mean_return\": 3.5}\n"
         "{\"step\": 3, \"eval_loss\": 1, \"eval_acc\": 0.75}\n";
  EXPECT_THAT(ReadLossCurves(path)->measured,
              ::testing::ElementsAre(::testing::Pair("eval_acc", 0.75),
                                     ::testing::Pair("eval_mean_return", 3.5)));
}

}  // namespace
}  // namespace capstan
