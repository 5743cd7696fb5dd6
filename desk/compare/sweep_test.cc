// SPDX-License-Identifier: Apache-2.0
#include "desk/compare/sweep.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "desk/compare/sweep_report.h"

namespace capstan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

SweepPoint Point(const std::string& rate,
                 const std::vector<absl::optional<double>>& values) {
  SweepPoint point;
  point.settings = {{"optimizer.learning_rate", rate}};
  for (size_t i = 0; i < values.size(); ++i) {
    SweepRun run;
    run.id = rate + "-" + std::to_string(i);
    run.seed = i;
    run.value = values[i];
    run.status = values[i].has_value() ? SweepRun::Status::kCompleted
                                       : SweepRun::Status::kFailed;
    point.runs.push_back(run);
  }
  Summarize(/*lower_is_better=*/true, &point);
  return point;
}

Sweep Four() {
  Sweep sweep;
  sweep.name = "a <b>";
  sweep.metric = "eval_loss";
  sweep.max_steps = 100;
  sweep.points = {Point("1e-3", {2.0, 3.0}), Point("1|2", {1.5, 1.5}),
                  Point("1e-1", {absl::nullopt, 0.5}), Point("5", {9.0, 9.5})};
  return sweep;
}

TEST(SweepTest, MeanDeviationAndBest) {
  const SweepPoint point = Point("1e-3", {1.0, 2.0, 4.5});
  EXPECT_DOUBLE_EQ(*point.mean, 2.5);
  EXPECT_DOUBLE_EQ(*point.deviation, std::sqrt((2.25 + 0.25 + 4.0) / 2));
  EXPECT_EQ(point.best, 1.0);
  EXPECT_FALSE(Point("1", {1.0}).deviation.has_value());
  EXPECT_FALSE(Point("1", {1.0, absl::nullopt}).mean.has_value())
      << "a seed with which it fails makes it no better";
}

TEST(SweepTest, RanksByTheMeanAndEndsTheWorse) {
  Sweep sweep = Four();
  EXPECT_THAT(Ranking(sweep), ElementsAre(1, 0, 3, 2));
  EXPECT_THAT(Survivors(sweep, {0, 1, 2, 3}, 2), ElementsAre(0, 1));
  EXPECT_THAT(Survivors(sweep, {0, 2, 3}, 2), ElementsAre(0, 3));
  EXPECT_THAT(Survivors(sweep, {0, 1, 2, 3}, 4), ElementsAre(1));
  EXPECT_THAT(Survivors(sweep, {0, 2}, 1), ElementsAre(0)) << "2 has no mean";
  EXPECT_TRUE(Survivors(sweep, {2}, 2).empty());
  // One that was ended early may have been better then.
  sweep.points[1].ended_at = 10;
  EXPECT_THAT(Ranking(sweep), ElementsAre(0, 3, 2, 1));
  sweep.points[1].ended_at = 0;
  sweep.lower_is_better = false;
  EXPECT_THAT(Ranking(sweep), ElementsAre(3, 0, 1, 2));
}

TEST(SweepTest, Rungs) {
  CompareConfig::Sweep::Halving halving;
  halving.set_first_steps(10);
  EXPECT_THAT(Rungs(halving, 80), ElementsAre(10, 20, 40));
  halving.set_factor(3);
  EXPECT_THAT(Rungs(halving, 91), ElementsAre(10, 30, 90));
  EXPECT_TRUE(Rungs(halving, 10).empty());
}

TEST(SweepTest, WhatTheMetricIsAfterAStep) {
  const std::string folder = ::testing::TempDir();
  std::ofstream file(folder + "/metrics.jsonl");
  for (int step = 1; step <= 40; ++step) {
    file << "{\"step\": " << step << ", \"loss\": " << 100 - step << "}\n";
    if (step % 10 == 0) {
      file << "{\"step\": " << step << ", \"eval_loss\": " << step << ".5}\n";
    }
  }
  file << "{\"step\": 41, \"loss\": null}\n" << std::flush;
  EXPECT_EQ(MetricAt(folder, "eval_loss", 25), 20.5);
  EXPECT_EQ(MetricAt(folder, "loss", 30), (70.0 + 71.0 + 72.0) / 3);
  EXPECT_EQ(MetricAt(folder, "loss", 3), 97.0);
  EXPECT_FALSE(MetricAt(folder, "eval_loss", 9).has_value());
  EXPECT_FALSE(MetricAt(folder, "loss", 41).has_value()) << "it isn't finite";
}

// An evaluation takes a while, and the step before it is there already.
TEST(SweepTest, ARungWaitsForItsEvaluation) {
  const std::string folder = ::testing::TempDir() + "/rung";
  ASSERT_TRUE(std::filesystem::create_directory(folder));
  std::ofstream file(folder + "/metrics.jsonl");
  RungFollower by_eval(folder, "eval_loss", 25, 10);
  RungFollower at_eval(folder, "eval_loss", 20, 10);
  RungFollower without(folder, "eval_typo", 20, 10);
  RungFollower by_loss(folder, "loss", 20, 10);
  const auto add = [&](const char* line) {
    file << line << "\n" << std::flush;
  };
  add("{\"step\": 10, \"loss\": 3}");
  add("{\"step\": 10, \"eval_loss\": 3}");
  EXPECT_FALSE(at_eval.Reached());
  add("{\"step\": 20, \"loss\": 2}");
  EXPECT_TRUE(by_loss.Reached());
  EXPECT_FALSE(at_eval.Reached());
  add("{\"step\": 20, \"eval_loss\": 2}");
  EXPECT_TRUE(at_eval.Reached());
  EXPECT_FALSE(by_eval.Reached());
  EXPECT_FALSE(without.Reached());
  add("{\"step\": 21, \"loss\": 2}");
  EXPECT_TRUE(without.Reached()) << "it will never be";
  EXPECT_FALSE(by_eval.Reached());
  add("{\"step\": 25, \"loss\": 2}");
  EXPECT_TRUE(by_eval.Reached());
}

TEST(SweepReportTest, TheBestComesFirstEverywhere) {
  Sweep sweep = Four();
  sweep.points[3].ended_at = 20;
  sweep.points[2].runs[0].reason = "it | broke";
  const nlohmann::json json = nlohmann::json::parse(SweepJson(sweep));
  EXPECT_EQ(json["ranking"], nlohmann::json({1, 0, 2, 3}));
  EXPECT_EQ(json["points"][0]["settings"]["optimizer.learning_rate"], "1e-3");
  EXPECT_EQ(json["points"][0]["mean"], 2.5);
  EXPECT_EQ(json["points"][0]["best"], 2.0);
  EXPECT_TRUE(json["points"][2]["mean"].is_null());
  EXPECT_EQ(json["points"][2]["runs"][0]["reason"], "it | broke");
  EXPECT_EQ(json["points"][3]["ended_at"], 20);
  EXPECT_THAT(SweepMarkdown(sweep),
              HasSubstr("| 1\\|2 | 1.5 | 0 | 1.5 | 2 | completed |\n| 1e-3 "));
  EXPECT_THAT(SweepText(sweep), HasSubstr("failed (seed 0): it | broke"));
  // The page, with the curves of each run and links to their folders.
  const std::string folder = ::testing::TempDir() + "/swept";
  ASSERT_TRUE(std::filesystem::create_directories(folder + "/runs/5-1"));
  std::ofstream(folder + "/runs/5-1/metrics.jsonl")
      << "{\"step\": 7, \"loss\": 0.0625}\n";
  const std::string html = SweepHtml(sweep, folder);
  EXPECT_THAT(html, HasSubstr("<title>a &lt;b&gt;</title>"));
  EXPECT_THAT(html, HasSubstr("ended after 20 steps"));
  EXPECT_THAT(html, HasSubstr("{\"folder\":\"runs/5-1\",\"seed\":1}"));
  EXPECT_THAT(html, HasSubstr("\"loss\":{\"at\":[7],\"mean\":[0.0625]}"));
}

}  // namespace
}  // namespace capstan
