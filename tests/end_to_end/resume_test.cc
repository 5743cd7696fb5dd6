// SPDX-License-Identifier: Apache-2.0
//
// N steps straight are k steps and N - k resumed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kSteps = 10;
constexpr int kSavedStep = 4;
constexpr char kWeights[] = "/final/model.safetensors";

// Shuffled, with a schedule, and with an epoch (40 sequences, 5 steps) that
// ends after the step that is saved and once more before the last.
RunText SmallRun() {
  return RunText()
      .Set("train_data", TextData(CorpusPiece(40 * 32), 32, "shuffle: true"))
      .Set("schedule", absl::StrCat("kind: COSINE warmup_steps: 3 "
                                    "total_steps: ",
                                    kSteps))
      .Train(absl::StrCat("max_steps: ", kSteps));
}

RunText Resumed(RunText run, const std::string& folder, int steps = kSteps) {
  return run.Output(folder).Train(
      absl::StrCat("resume: AUTO max_steps: ", steps));
}

// The folder of a run that stopped after kSavedStep steps.
std::string FirstPart(RunText run) {
  return MustTrain(run.Train(absl::StrCat("max_steps: ", kSavedStep)));
}

void ExpectSameRun(const std::string& folder, const std::string& straight) {
  const Metrics one = ReadMetrics(folder);
  const Metrics other = ReadMetrics(straight);
  for (const char* key : {"step", "loss", "grad_norm", "lr", "tokens"}) {
    EXPECT_EQ(one.Values(key), other.Values(key)) << key;
  }
  // Whole files: too large to print when they differ.
  EXPECT_TRUE(ReadText(folder + kWeights) == ReadText(straight + kWeights));
  const nlohmann::json summary = ReadJson(folder + "/summary.json");
  EXPECT_EQ(summary["steps"], ReadJson(straight + "/summary.json")["steps"]);
  EXPECT_EQ(summary["tokens"], ReadJson(straight + "/summary.json")["tokens"]);
  EXPECT_EQ(summary["status"], "completed");
}

class ResumeTest : public ::testing::TestWithParam<int> {
 protected:
  RunText RunHere() const {
    return GetParam() == 1 ? SmallRun().Batch(4, 8)
                           : SmallRun().Ddp(GetParam()).Batch(2, 8);
  }
};

TEST_P(ResumeTest, BitForBitInFloat32) {
  const std::string straight = MustTrain(RunHere());
  ASSERT_EQ(ReadMetrics(straight).steps.size(), kSteps);
  const std::string folder = FirstPart(RunHere());
  ASSERT_EQ(ReadMetrics(folder).steps.size(), kSavedStep);
  ASSERT_FALSE(ReadText(folder + kWeights) == ReadText(straight + kWeights));
  MustTrain(Resumed(RunHere(), folder));
  ExpectSameRun(folder, straight);
}

TEST_P(ResumeTest, LossScaleOfFloat16) {
  // Too large a scale at first: steps are skipped, and the scale that has been
  // found is part of what is resumed. It also grows every three steps.
  const RunText run =
      RunHere().Set("precision",
                    "[plugin/capstan.fp16.Config] { initial_scale: 4294967296 "
                    "growth_interval: 3 }");
  const std::string straight = MustTrain(run);
  const std::vector<double> scales = ReadMetrics(straight).Values("loss_scale");
  EXPECT_LT(scales[kSavedStep - 1], 4294967296.0);
  EXPECT_TRUE(ReadMetrics(straight).steps[0].value("skipped", false));
  const std::string folder = FirstPart(run);
  MustTrain(Resumed(run, folder));
  EXPECT_EQ(ReadMetrics(folder).Values("loss_scale"), scales);
  EXPECT_EQ(ReadMetrics(folder).losses(), ReadMetrics(straight).losses());
  EXPECT_TRUE(ReadText(folder + kWeights) == ReadText(straight + kWeights));
}

INSTANTIATE_TEST_SUITE_P(Ranks, ResumeTest, ::testing::Values(1, 2));

// Only the order of sums over ranks differs.
TEST(ResumeElsewhereTest, SavedOnTwoRanksResumedOnOneAndOnThree) {
  const RunText run = SmallRun().Ddp(2).Batch(1, 6);
  const std::vector<double> straight = ReadMetrics(MustTrain(run)).losses();
  const std::string saved = FirstPart(run);
  for (const RunText& other :
       {SmallRun().Single().Batch(3, 6), SmallRun().Ddp(3).Batch(1, 6)}) {
    const std::string folder = NewTestFolder("elsewhere") + "/out";
    std::filesystem::copy(saved, folder,
                          std::filesystem::copy_options::recursive);
    MustTrain(Resumed(other, folder));
    const std::vector<double> losses = ReadMetrics(folder).losses();
    ASSERT_EQ(losses.size(), straight.size());
    for (size_t i = 0; i < losses.size(); ++i) {
      EXPECT_NEAR(losses[i], straight[i], 1e-6) << "step " << i + 1;
    }
  }
}

TEST(ResumeElsewhereTest, AnotherSeedIsRefused) {
  const std::string folder = FirstPart(SmallRun());
  const auto before = Snapshot(folder);
  const RunText run = Resumed(SmallRun().Train("seed: 2"), folder);
  ExpectOneError(RunTrainer({"--config=" + run.File()}),
                 {"run.pbtxt:", "train.seed", "is 2", "started with 1"});
  EXPECT_EQ(Snapshot(folder), before);
}

TEST(ResumeElsewhereTest, AnotherModelIsRefused) {
  const std::string folder = FirstPart(SmallRun());
  const auto before = Snapshot(folder);
  const RunText run = Resumed(SmallRun(), folder);
  const TrainerResult result = RunTrainer(
      {"--config=" + run.File(), "--set", "model.intermediate_size=96"});
  ExpectOneError(result, {"step-00000004", "mlp.", "96", "88"});
  EXPECT_EQ(Snapshot(folder), before);
}

TEST(ResumeElsewhereTest, NothingLeftToDoChangesNoWeight) {
  const std::string folder = MustTrain(SmallRun());
  const std::string weights = ReadText(folder + kWeights);
  const std::vector<double> losses = ReadMetrics(folder).losses();
  MustTrain(Resumed(SmallRun(), folder));
  EXPECT_TRUE(ReadText(folder + kWeights) == weights);
  EXPECT_EQ(ReadMetrics(folder).losses(), losses);
}

class SignalTest : public ::testing::TestWithParam<int> {};

// The signal saves and stops; what is resumed equals the run without it.
TEST_P(SignalTest, SavesStopsAndResumes) {
  const RunText endless = SmallRun()
                              .Ddp(2)
                              .Batch(2, 8)
                              .Set("schedule", "")
                              .Train("max_steps: 1000000 save_every: 3")
                              .Output(NewTestFolder("run") + "/out");
  TrainerProcess process({"--config=" + endless.File()});
  const std::string folder = endless.output();
  ASSERT_TRUE(
      process.WaitForFile(folder + "/checkpoints/step-00000003/manifest.json"))
      << process.Wait().err;
  process.Signal(GetParam());
  const TrainerResult result = process.Wait();
  EXPECT_EQ(result.exit_code, 128 + GetParam()) << result.err;
  EXPECT_TRUE(result.all_gone);
  EXPECT_THAT(result.err, HasSubstr("saved in " + folder));
  EXPECT_EQ(ReadJson(folder + "/summary.json")["status"], "stopped");
  EXPECT_FALSE(std::filesystem::exists(folder + "/final"));
  const int steps = ReadMetrics(folder).steps.size();
  ASSERT_EQ(CheckpointSteps(folder).back(), steps);

  const RunText straight =
      RunText(endless)
          .Train(absl::StrCat("save_every: 0 max_steps: ", steps + 3))
          .Output("");
  MustTrain(Resumed(endless, folder, steps + 3));
  ExpectSameRun(folder, MustTrain(straight));
}

INSTANTIATE_TEST_SUITE_P(All, SignalTest, ::testing::Values(SIGTERM, SIGINT));

TEST(SignalsTest, TheSecondStopsAtOnce) {
  const RunText endless = SmallRun()
                              .Ddp(2)
                              .Batch(2, 8)
                              .Train("max_steps: 1000000 save_every: 1")
                              .Output(NewTestFolder("run") + "/out");
  TrainerProcess process({"--config=" + endless.File()});
  ASSERT_TRUE(process.WaitForFile(endless.output() + "/metrics.jsonl"));
  process.Signal(SIGTERM);
  process.Signal(SIGINT);
  const TrainerResult result = process.Wait();
  EXPECT_THAT((std::vector<int>{result.exit_code}),
              ElementsAre(::testing::AnyOf(128 + SIGINT, 128 + SIGTERM)));
  EXPECT_TRUE(result.all_gone);
}

}  // namespace
}  // namespace capstan
