// SPDX-License-Identifier: Apache-2.0
//
// Weights that a run has broken, or begins with: nothing of them is saved.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <ostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

struct Ranks {
  std::string strategy;
  int ranks;
};

void PrintTo(const Ranks& ranks, std::ostream* out) {
  *out << ranks.strategy << ranks.ranks;
}

RunText AtRate(const std::string& learning_rate) {
  return RunText().Set(
      "optimizer",
      absl::StrCat("[plugin/capstan.adamw.Config] { learning_rate: ",
                   learning_rate, " weight_decay: 0.01 }"));
}

class NonFiniteTest : public ::testing::TestWithParam<Ranks> {
 protected:
  RunText Here(RunText run) const {
    return run.Strategy(GetParam().strategy, GetParam().ranks).Batch(4, 8);
  }
};

TEST_P(NonFiniteTest, WhatWasGoodStays) {
  const RunText good =
      Here(AtRate("3e-3")).Train("save_every: 1 keep_checkpoints: 2");
  const std::string folder = MustTrain(RunText(good).Train("max_steps: 4"));
  const auto checkpoints = Snapshot(folder + "/checkpoints");
  const auto final_folder = Snapshot(folder + "/final");
  // Saved at once; not before long, so that skipped steps tell; on a signal or
  // at the end.
  for (const char* save : {"save_every: 1", "save_every: 0 max_steps: 1000",
                           "save_every: 0 max_steps: 5"}) {
    const TrainerResult result =
        RunTrainer({"--config=" + Here(AtRate("1e38"))
                                      .Train("resume: AUTO max_steps: 9 "
                                             "resume_with_changes: "
                                             "[\"optimizer\"]")
                                      .Train(save)
                                      .Output(folder)
                                      .File()});
    ExpectOneError(
        result, {"after step ", "'model.", "holds NaN", "none did after step 4",
                 "capstan.adamw", "learning_rate 1e+38", "step-00000004"});
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_EQ(Snapshot(folder + "/checkpoints"), checkpoints) << save;
    EXPECT_EQ(Snapshot(folder + "/final"), final_folder) << save;
    EXPECT_EQ(ReadJson(folder + "/summary.json")["status"], "failed");
    EXPECT_LE(ReadMetrics(folder).steps.size(), 7u) << "it ends soon";
  }
  // And that is where it goes on, as if nothing had been.
  MustTrain(RunText(good).Train("resume: AUTO max_steps: 6").Output(folder));
  const std::string straight = MustTrain(RunText(good).Train("max_steps: 6"));
  EXPECT_EQ(ReadMetrics(folder).losses(), ReadMetrics(straight).losses());
  EXPECT_TRUE(ReadText(folder + "/final/model.safetensors") ==
              ReadText(straight + "/final/model.safetensors"));
}

INSTANTIATE_TEST_SUITE_P(All, NonFiniteTest,
                         ::testing::Values(Ranks{"single", 1}, Ranks{"ddp", 1},
                                           Ranks{"ddp", 2}, Ranks{"zero2", 1},
                                           Ranks{"zero2", 2}, Ranks{"fsdp", 1},
                                           Ranks{"fsdp", 2}),
                         [](const auto& info) {
                           return absl::StrCat(info.param.strategy,
                                               info.param.ranks);
                         });

// Weights of 1e10 are finite, and still nothing can be computed with them.
TEST(NonFiniteRunTest, ARunThatEndsInSkippedStepsReplacesNothing) {
  const RunText good = AtRate("3e-3").Train("save_every: 1");
  const std::string folder = MustTrain(RunText(good).Train("max_steps: 4"));
  const auto checkpoints = Snapshot(folder + "/checkpoints");
  const auto final_folder = Snapshot(folder + "/final");
  const TrainerResult result = RunTrainer(
      {"--config=" + AtRate("1e12")
                         .Train("resume: AUTO max_steps: 9 save_every: 0 "
                                "resume_with_changes: \"optimizer\"")
                         .Output(folder)
                         .File()});
  ExpectOneError(result, {"finite", "capstan.adamw"});
  EXPECT_EQ(Snapshot(folder + "/checkpoints"), checkpoints);
  EXPECT_EQ(Snapshot(folder + "/final"), final_folder);
  EXPECT_EQ(ReadJson(folder + "/summary.json")["status"], "failed");
}

TEST(NonFiniteRunTest, KeepBestSavesNothingOfIt) {
  const RunText run =
      AtRate("1e38")
          .Set("train_data", TextData(Runfile("tests/testdata/corpus.txt"), 32,
                                      "validation_fraction: 0.1"))
          .Train("max_steps: 9 eval_every: 1 eval_batches: 1 keep_best: true")
          .Output(NewTestFolder("run") + "/out");
  ExpectOneError(RunTrainer({"--config=" + run.File()}),
                 {"holds NaN", "capstan.adamw"});
  EXPECT_TRUE(CheckpointSteps(run.output()).empty());
  EXPECT_FALSE(fs::exists(run.output() + "/final"));
}

// A copy of the golden Llama with a NaN in its last norm.
std::string BrokenModel() {
  const std::string folder =
      CopyFolder(Runfile("tests/golden/testdata/llama"), "model");
  const std::string path = folder + "/model.safetensors";
  std::string bytes = ReadText(path);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  const size_t at =
      SafetensorsHeader(path)["model.norm.weight"]["data_offsets"][0];
  bytes.replace(sizeof(header_bytes) + header_bytes + at, 4,
                "\xff\xff\xff\xff");
  WriteText(path, bytes);
  return folder;
}

RunText OnBrokenModel() {
  return RunText::Golden()
      .Set("model", absl::StrCat("[plugin/capstan.llama.Config] { pretrained: "
                                 "\"",
                                 BrokenModel(), "\" }"))
      .Ddp(2)
      .Batch(4, 8)
      .Output(NewTestFolder("run") + "/out");
}

TEST(NonFiniteModelTest, TrainedWeights) {
  const RunText run = OnBrokenModel();
  ExpectOneError(
      RunTrainer({"--config=" + run.File()}),
      {"model: ", "the initial value of 'model.norm.weight' holds NaN"});
  EXPECT_TRUE(CheckpointSteps(run.output()).empty());
}

TEST(NonFiniteModelTest, FrozenWeights) {
  const RunText run = OnBrokenModel().Set("adapter", "lora { rank: 2 }");
  ExpectOneError(RunTrainer({"--config=" + run.File()}),
                 {"model: ", "'model.norm.weight', which is frozen"});
  EXPECT_FALSE(fs::exists(run.output() + "/final"));
  EXPECT_EQ(ReadJson(run.output() + "/summary.json")["status"], "failed");
}

}  // namespace
}  // namespace capstan
