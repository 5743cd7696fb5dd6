// SPDX-License-Identifier: Apache-2.0
//
// N steps straight are k steps and N - k resumed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <ostream>
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

struct Way {
  std::string name;
  std::string strategy;  // the slot's text
  int ranks;
};

void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

std::vector<Way> Ways() {
  const auto plugin = [](const std::string& name, const std::string& fields) {
    return absl::StrCat("[plugin/capstan.", name, ".Config] { ", fields, " }");
  };
  return {
      {"Single", plugin("single", ""), 1},
      {"Ddp2", plugin("ddp", ""), 2},
      // It has synchronised after the step that is saved.
      {"DiLoCo2", plugin("diloco", "local_steps: 2"), 2},
      {"Zero2On4", plugin("zero2", ""), 4},
      {"Zero2On2ReducingOnceOffloaded",
       plugin("zero2",
              "accumulation: REDUCE_ONCE offload_optimizer { device: CPU }"),
       2},
      {"Fsdp2", plugin("fsdp", ""), 2},
      {"Fsdp4Hybrid", plugin("fsdp", "shard_group_size: 2"), 4},
  };
}

class ResumeTest : public ::testing::TestWithParam<Way> {
 protected:
  RunText RunHere() const {
    // With accumulation.
    return SmallRun()
        .Strategy(GetParam().strategy, GetParam().ranks)
        .Batch(GetParam().ranks == 4 ? 1 : 2, 8);
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

class LossScaleResumeTest : public ResumeTest {};

TEST_P(LossScaleResumeTest, GoesOn) {
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

INSTANTIATE_TEST_SUITE_P(All, ResumeTest, ::testing::ValuesIn(Ways()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(All, LossScaleResumeTest,
                         ::testing::Values(Ways()[0], Ways()[3], Ways()[5]),
                         [](const auto& info) { return info.param.name; });

TEST(ResumeEdgesTest, AnotherSeedIsRefused) {
  const std::string folder = FirstPart(SmallRun());
  const auto before = Snapshot(folder);
  const RunText run = Resumed(SmallRun().Train("seed: 2"), folder);
  ExpectOneError(RunTrainer({"--config=" + run.File()}),
                 {"run.pbtxt:", "train.seed", "is 2", "started with 1"});
  EXPECT_EQ(Snapshot(folder), before);
}

TEST(ResumeEdgesTest, NothingLeftToDoChangesNothing) {
  const std::string folder = MustTrain(SmallRun());
  const auto before = Snapshot(folder);
  const RunText run = Resumed(SmallRun(), folder);
  const TrainerResult result = RunTrainer({"--config=" + run.File()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr(folder + " is finished after 10 steps"));
  EXPECT_THAT(result.out, HasSubstr("train.max_steps"));
  EXPECT_EQ(Snapshot(folder), before);
}

TEST(ResumeEdgesTest, AFinalFolderWithoutWeightsIsMadeAnew) {
  const std::string folder = MustTrain(SmallRun());
  const std::string weights = ReadText(folder + kWeights);
  std::filesystem::remove(folder + kWeights);
  MustTrain(Resumed(SmallRun(), folder));
  EXPECT_TRUE(ReadText(folder + kWeights) == weights);
}

// What is asked for beyond its steps is done.
TEST(ResumeEdgesTest, AFinishedRunGoesOnToMoreSteps) {
  const std::string folder = MustTrain(SmallRun());
  MustTrain(Resumed(SmallRun(), folder, kSteps + 2));
  EXPECT_EQ(ReadMetrics(folder).steps.size(), kSteps + 2);
  EXPECT_EQ(ReadJson(folder + "/summary.json")["steps"], kSteps + 2);
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
