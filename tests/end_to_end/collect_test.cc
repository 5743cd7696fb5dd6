// SPDX-License-Identifier: Apache-2.0
//
// Data that a run makes for itself, and a run that measures: Algorithm
// Distillation in small.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

// 81 goals, 80 steps of two agents each; `path` has its histories.
RunText SmallAd(const std::string& path, const std::string& more = "") {
  RunText run;
  run.Set("collect",
          absl::StrCat("[plugin/capstan.darkroom.Config] { output: \"", path,
                       "\" streams: 2 steps: 160 ppo { n_steps: 20 batch_size: "
                       "20 n_epochs: 2 } ",
                       more, "}"))
      .Set("model",
           "[plugin/capstan.ad_transformer.Config] { embedding: 16 layers: 2 "
           "heads: 2 n_transit: 12 }")
      .Set("objective",
           "[plugin/capstan.algorithm_distillation.Config] { evaluation { "
           "episodes: 2 final_episodes: 3 } }")
      .Set("train_data",
           absl::StrCat("[plugin/capstan.ad_history.Config] { path: \"", path,
                        "\" n_transit: 12 steps: 80 shuffle: true }"))
      .Batch(4, 8)
      .Train("max_steps: 4 eval_every: 2 eval_batches: 4 log_every: 1");
  return run;
}

TEST(CollectTest, WhatIsMissingIsCollectedOnce) {
  const std::string path = NewTestFolder("data") + "/history.hdf5";
  RunText run = SmallAd(path).Ddp(2);
  ExpectOneError(RunTrainer({"check", "--config=" + run.File()}),
                 {path, "isn't there yet", "trainer collect"});
  EXPECT_FALSE(fs::exists(path));

  const std::string folder = NewTestFolder("run") + "/first";
  TrainerResult result = RunTrainer({"--config=" + run.Output(folder).File()});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("collecting " + path));
  ASSERT_TRUE(fs::exists(path));
  const auto written = fs::last_write_time(path);

  const Metrics metrics = ReadMetrics(folder);
  ASSERT_THAT(metrics.steps, SizeIs(4));
  for (const nlohmann::json& line : metrics.steps) {
    EXPECT_TRUE(line.contains("acc_action")) << line;
    EXPECT_NEAR(line["loss_action"].get<double>(), line["loss"].get<double>(),
                1e-5);
  }
  ASSERT_THAT(metrics.evals, SizeIs(2));
  EXPECT_TRUE(metrics.evals[0].contains("test_loss_action"));
  ASSERT_THAT(metrics.others, SizeIs(2));
  EXPECT_TRUE(metrics.others[0].contains("eval_mean_return"));
  EXPECT_THAT(ReadText(folder + "/return.svg"), HasSubstr("after step 4"));
  // 8 goals, 3 episodes.
  EXPECT_THAT(ReadText(folder + "/eval_result.npy"), HasSubstr("(8, 3)"));

  result = RunTrainer(
      {"--config=" + run.Output(NewTestFolder("run") + "/second").File()});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, Not(HasSubstr("collecting")));
  EXPECT_EQ(fs::last_write_time(path), written);
}

TEST(CollectTest, TheCommandCollectsInAnyCase) {
  const std::string path = NewTestFolder("data") + "/history.hdf5";
  WriteText(path, "old");
  const TrainerResult result =
      RunTrainer({"collect", "--config=" + SmallAd(path).File()});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(ReadText(path), Not("old"));
  ExpectOneError(RunTrainer({"collect", "--config=" + RunText().File()}),
                 {"collect", "nothing to collect"});
  ExpectOneError(
      RunTrainer(
          {"collect", "--config=" + SmallAd(path, "horizon: -1 ").File()}),
      {"collect.horizon"});
}

TEST(CollectTest, StopsWhenAskedAndLeavesWhatWasThere) {
  const std::string folder = NewTestFolder("data");
  const std::string path = folder + "/history.hdf5";
  WriteText(path, "old");
  TrainerProcess process(
      {"collect", "--config=" + SmallAd(path, "steps: 100000000 ").File()});
  while (process.Running() && process.Seconds() < 2.0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  ASSERT_TRUE(process.Running());
  process.Signal(SIGINT);
  const TrainerResult result = process.Wait();
  ExpectOneError(result, {"stopped"});
  EXPECT_EQ(ReadText(path), "old");
  EXPECT_THAT(Snapshot(folder), SizeIs(1)) << "nothing half done is left";
}

}  // namespace
}  // namespace capstan
