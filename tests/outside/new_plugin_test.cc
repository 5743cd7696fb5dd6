// SPDX-License-Identifier: Apache-2.0
//
// An outsider's afternoon: what `trainer new-plugin` writes is built without
// Bazel against the SDK folder, passes its tests, and trains on one curve under
// every strategy.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/outside_build.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// A folder with the plugin acme.cub, or the command `trainer cub`.
std::string NewPlugin(const std::string& category) {
  const std::string folder = NewTestFolder("plugins");
  const TrainerResult result = RunTrainer(
      {"new-plugin", "--category=" + category, "--name=acme.cub", folder});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              HasSubstr(category == "command" ? "//acme/command_cub:all"
                                              : "bazel test //acme/cub:all"));
  return folder;
}

// Calls the command with the text that came with it.
void ExpectWords(const std::string& folder) {
  const TrainerResult result =
      RunTrainer({"--plugin_path=" + folder + "/build/acme/command_cub", "cub",
                  "--text=" + folder + "/acme/command_cub/testdata/lines.txt",
                  "--most=2"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 2)
      << result.out;
}

// The losses of 20 steps of `run` with the plugin's own config over it.
std::vector<double> Losses(const std::string& folder, RunText run) {
  run.Train("max_steps: 20").Output(NewTestFolder("run") + "/out");
  const TrainerResult result = RunTrainer(
      {"--config=" + run.File(), "--config=" + folder + "/acme/cub/cub.pbtxt",
       "--plugin_path=" + folder + "/build/acme/cub"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  if (result.exit_code != 0) return {};
  return ReadMetrics(run.output()).losses();
}

// A strategy of the trainer's and its ranks; "": the plugin is the strategy.
std::vector<std::pair<std::string, int>> Runs(const std::string& category) {
  if (category == "strategy") return {{"", 1}, {"", 2}, {"", 4}};
  return {{"single", 1}, {"ddp", 2}, {"zero2", 2}, {"fsdp", 2}};
}

void ExpectOneCurve(const std::string& category, const std::string& folder) {
  // Sums in another order; of bfloat16, with 8 bits.
  const double bound = category == "precision" ? 2e-2 : 1e-4;
  std::vector<double> first;
  for (const auto& [strategy, ranks] : Runs(category)) {
    SCOPED_TRACE(absl::StrCat(strategy, " on ", ranks));
    RunText run;
    run.Strategy(strategy.empty() ? "ddp" : strategy, ranks)
        .Batch(8 / ranks, 8);
    const std::vector<double> losses = Losses(folder, std::move(run));
    ASSERT_EQ(losses.size(), 20);
    // Of an environment 20 batches of 8 say too little.
    if (category != "part") {
      EXPECT_LT(losses.back(), losses.front());
    }
    if (first.empty()) first = losses;
    for (size_t i = 0; i < losses.size(); ++i) {
      // So that NaN fails.
      EXPECT_TRUE(std::fabs(losses[i] - first[i]) <= bound * first[i])
          << "step " << i + 1 << ": " << losses[i] << " and " << first[i];
    }
  }
}

class NewPluginTest : public ::testing::TestWithParam<const char*> {};

TEST_P(NewPluginTest, IsBuiltTestedAndTrainedWith) {
  if (!CanBuildOutside()) GTEST_SKIP() << "there is no make, g++ or protoc";
  const std::string category = GetParam();
  const std::string folder = NewPlugin(category);
  const ShellResult made = Make(folder, "test");
  ASSERT_EQ(made.exit_code, 0) << made.output;
  EXPECT_THAT(made.output, HasSubstr("[  PASSED  ]"));
  EXPECT_FALSE(::testing::Test::HasFailure());
  if (category == "command") {
    ExpectWords(folder);
  } else {
    ExpectOneCurve(category, folder);
  }
}

INSTANTIATE_TEST_SUITE_P(All, NewPluginTest,
                         ::testing::Values("collector", "command",
                                           "dataset_reader", "model",
                                           "objective", "optimizer", "part",
                                           "precision", "strategy"),
                         [](const auto& category) {
                           return std::string(category.param);
                         });

ShellResult CMake(const std::string& folder) {
  return Shell(folder,
               absl::StrCat("cmake -B build '-DCMAKE_PREFIX_PATH=", SdkFolder(),
                            "' '-DCAPSTAN_TORCH_DIR=", TorchFolder(),
                            "' && cmake --build build && cd build && "
                            "ctest -V"));
}

TEST(OutsideTest, CMakeDoesToo) {
  if (!HasTool("cmake")) GTEST_SKIP() << "there is no cmake";
  const std::string folder = NewPlugin("optimizer");
  const ShellResult made = CMake(folder);
  ASSERT_EQ(made.exit_code, 0) << made.output;
  EXPECT_THAT(made.output, HasSubstr("100% tests passed"));
  EXPECT_EQ(Losses(folder, RunText()).size(), 20);
}

// It has no .proto.
TEST(OutsideTest, CMakeBuildsACommand) {
  if (!HasTool("cmake")) GTEST_SKIP() << "there is no cmake";
  const std::string folder = NewPlugin("command");
  const ShellResult made = CMake(folder);
  ASSERT_EQ(made.exit_code, 0) << made.output;
  EXPECT_THAT(made.output, HasSubstr("100% tests passed"));
  ExpectWords(folder);
}

// An environment for Algorithm Distillation in a hundred lines: histories of it
// are collected, trained on, and its held-out tasks played.
TEST(OutsideTest, AnEnvironmentIsCollectedTrainedAndPlayed) {
  if (!CanBuildOutside()) GTEST_SKIP() << "there is no make, g++ or protoc";
  const std::string folder = NewTestFolder("environment");
  const std::string own = folder + "/acme/corridor";
  fs::create_directories(own);
  for (const char* file : {"corridor.cc", "corridor.proto"}) {
    fs::copy_file(Runfile(std::string("tests/outside/acme/corridor/") + file),
                  absl::StrCat(own, "/", file));
  }
  WriteText(folder + "/Makefile",
            "include $(CAPSTAN_SDK)/capstan.mk\n"
            "$(eval $(call capstan_plugin,acme/corridor))\n");
  const ShellResult made = Make(folder, "");
  ASSERT_EQ(made.exit_code, 0) << made.output;

  const std::string plugins =
      "--plugin_path=" + folder + "/build/acme/corridor";
  const std::string histories = folder + "/histories.hdf5";
  RunText run;
  run.Set("collect",
          "[plugin/capstan.darkroom.Config] { environment { "
          "[plugin/acme.corridor.Config] { length: 9 } } streams: 10 steps: "
          "20000 ppo { n_steps: 20 learning_rate: 3e-3 } }");
  run.Set("model",
          "[plugin/capstan.ad_transformer.Config] { embedding: 32 layers: 1 "
          "heads: 2 n_transit: 20 observation: 9 actions: 3 dropout: 0 }");
  run.Set("objective",
          "[plugin/capstan.algorithm_distillation.Config] { evaluation { "
          "episodes: 0 final_episodes: 4 streams: 2 } }");
  run.Set(
      "train_data",
      absl::StrCat("[plugin/capstan.ad_history.Config] { path: \"", histories,
                   "\" n_transit: 20 steps: 2000 short_contexts: true "
                   "shuffle: true }"));
  run.Set("optimizer", "[plugin/capstan.adamw.Config] { learning_rate: 3e-3 }");
  run.Batch(16, 32).Ddp(2).Train("max_steps: 60");
  run.Output(NewTestFolder("run") + "/out");
  const TrainerResult trained = RunTrainer({"--config=" + run.File(), plugins});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const std::vector<double> losses = ReadMetrics(run.output()).losses();
  ASSERT_EQ(losses.size(), 60u);
  // Of the first actions nothing but chance can be learnt, ln 3 nats each.
  EXPECT_LT(std::accumulate(losses.end() - 10, losses.end(), 0.0) / 10,
            0.8 * losses.front());
  // Two tasks are held out: numpy's header says so.
  EXPECT_THAT(ReadText(run.output() + "/eval_result.npy"),
              HasSubstr("'shape': (2, 4)"));

  const TrainerResult played =
      RunTrainer({"eval", "--model=" + run.output(), plugins, "--goal_idx", "1",
                  "--final_episodes=3", "--json"});
  EXPECT_EQ(played.exit_code, 0) << played.err;
  EXPECT_THAT(played.out, HasSubstr("\"eval_mean_return\""));
  // Without the plugin the file is nothing.
  run.Set("collect", "");
  const TrainerResult alone = RunTrainer({"check", "--config=" + run.File()});
  ExpectOneError(alone, {"train_data.path", histories, "acme.corridor"});
}

TEST(OutsideTest, WhatIsMissingIsSaid) {
  if (!HasTool("make")) GTEST_SKIP() << "there is no make";
  const std::string folder = NewPlugin("optimizer");
  const ShellResult made =
      Shell(folder, absl::StrCat("make 'CAPSTAN_SDK=", SdkFolder(),
                                 "' CAPSTAN_TORCH_DIR=/nowhere"));
  EXPECT_NE(made.exit_code, 0);
  EXPECT_THAT(made.output, HasSubstr("LibTorch is not in \"/nowhere\": set "
                                     "CAPSTAN_TORCH_DIR"));
}

}  // namespace
}  // namespace capstan
