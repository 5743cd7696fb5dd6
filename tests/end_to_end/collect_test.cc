// SPDX-License-Identifier: Apache-2.0
//
// Data that a run makes for itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

// 81 goals, 80 steps of two agents each; `path` has its histories.
RunText SmallAd(const std::string& path,
                const std::string& more = "steps: 160") {
  RunText run;
  run.Set("collect",
          absl::StrCat(
              "[plugin/capstan.darkroom.Config] { output: \"", path,
              "\" streams: 2 ppo { n_steps: 20 batch_size: 20 n_epochs: 2 } ",
              more, "}"))
      .Set("model",
           "[plugin/capstan.ad_transformer.Config] { embedding: 16 layers: 2 "
           "heads: 2 n_transit: 12 }")
      .Set("objective",
           "[plugin/capstan.algorithm_distillation.Config] { evaluation { "
           "episodes: 2 final_episodes: 3 } }")
      .Set("train_data",
           absl::StrCat("[plugin/capstan.ad_history.Config] { path: \"", path,
                        "\" n_transit: 12 steps: 80 shuffle: true }"));
  return run;
}

// Training makes what is missing (tests/ad); who only looks is told.
TEST(CollectTest, WhatIsMissingIsSaid) {
  const std::string path = NewTestFolder("data") + "/history.hdf5";
  for (const char* command : {"check", "plan"}) {
    ExpectOneError(RunTrainer({command, "--config=" + SmallAd(path).File()}),
                   {path, "isn't there yet", "trainer collect"});
  }
  EXPECT_FALSE(fs::exists(path));
}

TEST(CollectTest, TheCommandReplacesNothingUnasked) {
  const std::string path = NewTestFolder("data") + "/history.hdf5";
  WriteText(path, "old");
  const std::string config = "--config=" + SmallAd(path).File();
  ExpectOneError(RunTrainer({"collect", config}),
                 {path, "is there already", "--force"});
  EXPECT_EQ(ReadText(path), "old");
  const TrainerResult result = RunTrainer({"collect", config, "--force"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(ReadText(path), StartsWith("\x89HDF"));
  // Of the configs that come with the trainer.
  const std::string full = NewTestFolder("data") + "/full.hdf5";
  const TrainerResult whole = RunTrainer(
      {"collect", "--config=" + Runfile("configs/collect_darkroom.pbtxt"),
       "--set", "collect.output=" + full, "--set", "collect.tasks=2", "--set",
       "collect.streams=2", "--set", "collect.steps=160"});
  EXPECT_EQ(whole.exit_code, 0) << whole.err;
  EXPECT_TRUE(fs::exists(full));
  ExpectOneError(RunTrainer({"collect", "--config=" + RunText().File()}),
                 {"collect", "nothing to collect"});
  ExpectOneError(
      RunTrainer(
          {"collect", "--config=" + SmallAd(path, "horizon: -1").File()}),
      {"collect.horizon"});
}

// A part of the tasks, where train_data says that the data is.
TEST(CollectTest, WhatIsCollectedOfSomeTasksCanBeTrainedOn) {
  const std::string path = NewTestFolder("data") + "/history.hdf5";
  RunText run = SmallAd(path);
  run.Train("max_steps: 2 eval_every: 1");
  const std::string config = "--config=" + run.File();
  const TrainerResult trained =
      RunTrainer({config, "--set", "collect.tasks=20", "--set",
                  "collect.output=", "--set", "train_data.streams=2"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_TRUE(fs::exists(path));
  EXPECT_THAT(trained.out, HasSubstr("20 of the 81 tasks: 19 are trained on"));
  // None of the first four is held out.
  const TrainerResult few =
      RunTrainer({"collect", "--force", config, "--set", "collect.tasks=4"});
  ASSERT_EQ(few.exit_code, 0) << few.err;
  ExpectOneError(RunTrainer({"check", config}),
                 {"train.eval_every", "nothing to evaluate on",
                  "0 of the 8 that are held out"});
  ExpectOneError(
      RunTrainer({"check", config, "--set", "train_data.split=TEST"}),
      {"train_data.path", "but of none of those that are wanted"});
}

TEST(CollectTest, StopsWhenAskedAndLeavesWhatWasThere) {
  const std::string folder = NewTestFolder("data");
  const std::string path = folder + "/history.hdf5";
  WriteText(path, "old");
  TrainerProcess process(
      {"collect", "--force",
       "--config=" + SmallAd(path, "steps: 2000000").File()});
  // Once it collects, into another file.
  const auto files = [&folder] {
    return std::distance(fs::directory_iterator(folder),
                         fs::directory_iterator());
  };
  ASSERT_TRUE(process.WaitUntil([&files] { return files() == 2; }));
  usleep(500000);
  process.Signal(SIGINT);
  const TrainerResult result = process.Wait();
  EXPECT_EQ(result.exit_code, 128 + SIGINT);
  EXPECT_THAT(result.err, StartsWith("collecting was stopped: "));
  EXPECT_EQ(ReadText(path), "old");
  EXPECT_THAT(Snapshot(folder), SizeIs(1)) << "nothing half done is left";
}

}  // namespace
}  // namespace capstan
