// SPDX-License-Identifier: Apache-2.0
//
// Algorithm Distillation from nothing: histories are collected where there are
// none, trained on, and held-out tasks played in context.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// Two streams of two episodes of each goal.
RunText Small(const std::string& histories) {
  RunText run;
  run.Set(
      "collect",
      absl::StrCat("[plugin/capstan.darkroom.Config] { output: \"", histories,
                   "\" streams: 2 steps: 80 ppo { n_steps: 20 batch_size: "
                   "10 n_epochs: 1 } }"));
  run.Set("model",
          "[plugin/capstan.ad_transformer.Config] { embedding: 16 layers: 1 "
          "heads: 2 n_transit: 8 }");
  run.Set("objective",
          "[plugin/capstan.algorithm_distillation.Config] { evaluation { "
          "episodes: 2 final_episodes: 5 } }");
  run.Set("train_data",
          absl::StrCat("[plugin/capstan.ad_history.Config] { path: \"",
                       histories, "\" n_transit: 8 steps: 40 shuffle: true }"));
  run.Train("max_steps: 4 eval_every: 2");
  return run.Ddp(2);
}

TEST(AdTest, CollectsTrainsAndPlays) {
  const std::string histories = NewTestFolder("data") + "/histories.hdf5";
  const std::string folder = MustTrain(Small(histories));
  ASSERT_TRUE(fs::exists(histories));
  // numpy's header; 8 tasks of 5 episodes, float64.
  const std::string array = ReadText(folder + "/eval_result.npy");
  EXPECT_THAT(array, HasSubstr("'shape': (8, 5)"));
  EXPECT_EQ(array.size() % 64, 8 * 5 * sizeof(double) % 64);
  EXPECT_THAT(ReadText(folder + "/return.svg"), HasSubstr("polyline"));
  int evaluations = 0;
  for (const nlohmann::json& line : ReadMetrics(folder).evals) {
    evaluations += line.contains("test_acc_action");
  }
  EXPECT_EQ(evaluations, 2);

  // What is there isn't made again.
  const auto made = fs::last_write_time(histories);
  MustTrain(Small(histories));
  EXPECT_EQ(fs::last_write_time(histories), made);
}

// Rooms of another size and horizon are said once, to the collector. Evaluation
// plays them, and with the original's --goal_idx some of them alone.
TEST(AdTest, WhatIsCollectedIsPlayed) {
  const std::string histories = NewTestFolder("data") + "/histories.hdf5";
  RunText run = Small(histories);
  run.Set(
      "collect",
      absl::StrCat("[plugin/capstan.darkroom.Config] { output: \"", histories,
                   "\" grid_size: 13 horizon: 30 tasks: 100 streams: 2 "
                   "steps: 80 ppo { n_steps: 20 batch_size: 10 n_epochs: "
                   "1 } }"));
  run.Set("model",
          "[plugin/capstan.ad_transformer.Config] { embedding: 16 layers: 1 "
          "heads: 2 n_transit: 8 grid: 13 }");
  const std::string folder = MustTrain(run);
  EXPECT_THAT(ReadText(folder + "/eval_result.npy"),
              HasSubstr("'shape': (17, 5)"));
  const std::string output = NewTestFolder("eval") + "/out";
  const TrainerResult played =
      RunTrainer({"eval", "--model=" + folder, "--goal_idx", "3", "84",
                  "--final_episodes=2", "--output=" + output});
  ASSERT_EQ(played.exit_code, 0) << played.err;
  EXPECT_THAT(ReadText(output + "/eval_result.npy"),
              HasSubstr("'shape': (2, 2)"));
  ExpectOneError(RunTrainer({"eval", "--model=" + folder, "--goal_idx=169"}),
                 {"ERROR: --goal_idx=169: ", "0 to 168"});
  ExpectOneError(RunTrainer({"eval", "--model=" + folder, "--goal=3"}),
                 {"--goal is neither a flag", "algorithm_distillation"});
  // Another data's histories.
  ExpectOneError(
      RunTrainer(
          {"eval", "--model=" + folder,
           "--data=" +
               Runfile("plugins/algorithm_distillation/darkroom/testdata/"
                       "history_small.hdf5"),
           "--set", "eval_data.tasks=PERMUTED"}),
      {"eval_data.tasks", "has histories of GOALS"});
}

TEST(AdTest, WhatDoesNotFitIsSaid) {
  const std::string nowhere = NewTestFolder("data") + "/histories.hdf5";
  RunText run = Small(nowhere);
  run.Set("collect", "");
  ExpectOneError(RunTrainer({"check", "--config=" + run.File()}),
                 {"train_data.path", nowhere});
  run = Small(Runfile(
      "plugins/algorithm_distillation/darkroom/testdata/history_small.hdf5"));
  run.Set("objective",
          "[plugin/capstan.algorithm_distillation.Config] { evaluation { "
          "tasks: 81 } }");
  ExpectOneError(RunTrainer({"check", "--config=" + run.File()}),
                 {"objective.evaluation.tasks", "0 to 80"});
  run = Small(Runfile(
      "plugins/algorithm_distillation/darkroom/testdata/history_small.hdf5"));
  run.Set("objective", "[plugin/capstan.causal_lm.Config] {}");
  ExpectOneError(RunTrainer({"check", "--config=" + run.File()}),
                 {"model of token sequences"});
  run = Small(Runfile(
      "plugins/algorithm_distillation/darkroom/testdata/history_small.hdf5"));
  run.Train("activation_checkpointing: MLP");
  ExpectOneError(RunTrainer({"check", "--config=" + run.File()}),
                 {"train.activation_checkpointing", "EVERY_UNIT"});
}

}  // namespace
}  // namespace capstan
