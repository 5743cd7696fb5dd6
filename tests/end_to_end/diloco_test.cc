// SPDX-License-Identifier: Apache-2.0
//
// A strategy whose ranks train apart between synchronisations.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

using ::testing::HasSubstr;

constexpr char kWeights[] = "/final/model.safetensors";
constexpr char kEachStep[] =
    "local_steps: 1 outer_learning_rate: 1 outer_momentum: 0";

std::string DiLoCo(const std::string& fields) {
  return absl::StrCat("[plugin/capstan.diloco.Config] { ", fields, " }");
}

// 12 steps of 8 sequences; with `save_every: 3` a step of each round of 4 is
// saved.
RunText SmallRun(const std::string& strategy, int ranks) {
  return RunText()
      .Strategy(strategy, ranks)
      .Batch(2, 8)
      .Train("max_steps: 12 save_every: 3 keep_checkpoints: 9");
}

// A copy of a finished run as it was after step `step`, killed.
std::string KilledAfter(int step, const std::string& folder) {
  const std::string copy = NewTestFolder("killed") + "/run";
  std::filesystem::copy(folder, copy, std::filesystem::copy_options::recursive);
  std::filesystem::remove_all(copy + "/final");
  std::filesystem::remove(copy + "/summary.json");
  for (const int64_t saved : CheckpointSteps(copy)) {
    if (saved <= step) continue;
    std::filesystem::remove_all(absl::StrCat(
        copy, "/checkpoints/step-",
        std::string(8 - std::to_string(saved).size(), '0'), saved));
  }
  return copy;
}

// With one local step, SGD and a plain mean, it is data parallelism: the mean
// of the ranks' updates is the update by the mean gradient.
TEST(DiLoCoTest, OneLocalStepIsDataParallelism) {
  const auto run = [](const std::string& strategy) {
    return MustTrain(
        SmallRun(strategy, 2)
            .Set("optimizer",
                 "[plugin/capstan.sgd.Config] { learning_rate: 0.5 }")
            .Train("max_grad_norm: 0"));
  };
  const std::vector<double> ddp = ReadMetrics(run("ddp")).losses();
  const std::vector<double> diloco =
      ReadMetrics(run(DiLoCo(kEachStep))).losses();
  ASSERT_EQ(diloco.size(), ddp.size());
  for (size_t i = 0; i < ddp.size(); ++i) {
    EXPECT_NEAR(diloco[i], ddp[i], 1e-5 * ddp[i]) << i;
  }
  EXPECT_LT(ddp.back(), 0.99 * ddp.front());
}

TEST(DiLoCoTest, ContinuesToTheBitInTheMidstOfARound) {
  for (const char* deltas : {"FLOAT32", "INT8"}) {
    const RunText run =
        SmallRun(DiLoCo(absl::StrCat("local_steps: 4 deltas: ", deltas)), 2);
    const std::string straight = MustTrain(run);
    for (const int step : {3, 6}) {
      const std::string folder = KilledAfter(step, straight);
      MustTrain(RunText(run).Output(folder).Train("resume: AUTO"));
      EXPECT_EQ(ReadMetrics(folder).losses(), ReadMetrics(straight).losses());
      EXPECT_EQ(ReadMetrics(folder).grad_norms(),
                ReadMetrics(straight).grad_norms());
      EXPECT_TRUE(ReadText(folder + kWeights) == ReadText(straight + kWeights));
    }
  }
}

double LossOf(const std::string& model) {
  const std::string folder = NewTestFolder("eval");
  const TrainerResult result =
      RunTrainer({"eval", "--model=" + model, "--output=" + folder});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.exit_code == 0
             ? ReadJson(folder + "/eval.json")["eval_loss"].get<double>()
             : 0.0;
}

// 10 isn't a multiple of 4: the last, short round is synchronised, too. Step 5
// evaluates the model of step 4, which is all that its checkpoint shares.
TEST(DiLoCoTest, EvaluationsAndFinalAreOfTheSharedModel) {
  const RunText run = SmallRun(DiLoCo("local_steps: 4"), 2)
                          .Set("eval_data", TextData(CorpusPiece(2000), 32))
                          .Train("max_steps: 10 eval_every: 5 save_every: 5");
  const std::string folder = MustTrain(run);
  const Metrics metrics = ReadMetrics(folder);
  ASSERT_EQ(metrics.evals.size(), 2);
  const auto evaluated = [&](int i) {
    return metrics.evals[i]["eval_loss"].get<double>();
  };
  EXPECT_NEAR(LossOf(folder + "/checkpoints/step-00000005"), evaluated(0),
              1e-5);
  EXPECT_NEAR(LossOf(folder + "/final"), evaluated(1), 1e-5);
  // The same run to step 8 has another model.
  const std::string shorter = MustTrain(RunText(run).Train("max_steps: 8"));
  EXPECT_GT(std::abs(LossOf(shorter + "/final") - evaluated(1)), 1e-3);
}

// A signal may arrive in the last step: resumed, the run completes its model.
TEST(DiLoCoTest, AStoppedLastRoundIsCompletedWhenTheRunGoesOn) {
  const RunText run = SmallRun(DiLoCo("local_steps: 5"), 2);
  const std::string straight = MustTrain(run);
  const std::string folder = KilledAfter(6, straight);
  // As if it had been asked for six steps, and was stopped after them.
  const RunText six = RunText(run).Train("max_steps: 6");
  MustTrain(RunText(six).Output(folder).Train("resume: AUTO"));
  EXPECT_TRUE(ReadText(folder + kWeights) ==
              ReadText(MustTrain(six) + kWeights));
}

TEST(DiLoCoTest, OtherRanksBeginWithTheSharedModel) {
  const RunText run = SmallRun(DiLoCo("local_steps: 4"), 2);
  const std::string folder = KilledAfter(6, MustTrain(run));
  const RunText other = SmallRun(DiLoCo("local_steps: 4"), 4)
                            .Output(folder)
                            .Train("resume: AUTO");
  const TrainerResult result = RunTrainer({"--config=" + other.File()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              HasSubstr("WARNING: the run had 2 ranks, now it has 4: under "
                        "capstan.diloco each begins again with the model that "
                        "they shared last"));
  EXPECT_EQ(ReadMetrics(folder).steps.size(), 12);
}

TEST(DiLoCoTest, ReplicasNeedEqualShares) {
  RunText run = SmallRun(DiLoCo("local_steps: 4"), 3).Batch(2, 8);
  ExpectOneError(RunTrainer({"--config=" +
                             run.Output(NewTestFolder("run") + "/out").File()}),
                 {"batch.global_batch_size: 8 is not a multiple", "2 x 3",
                  "capstan.diloco"});
}

TEST(DiLoCoTest, AnotherCurveIsRefusedUnlessItIsNamed) {
  const std::string folder =
      KilledAfter(6, MustTrain(SmallRun(DiLoCo("local_steps: 4"), 2)));
  const RunText ddp = SmallRun("ddp", 2).Output(folder).Train("resume: AUTO");
  ExpectOneError(RunTrainer({"--config=" + ddp.File()}),
                 {"strategy: capstan.diloco -> unset", "strategy.local_steps",
                  "train.resume_with_changes"});
  MustTrain(RunText(ddp).Train("resume_with_changes: \"strategy\""));
  // And back.
  const std::string again = KilledAfter(6, MustTrain(SmallRun("ddp", 2)));
  const RunText diloco =
      SmallRun(DiLoCo("local_steps: 4"), 2).Output(again).Train("resume: AUTO");
  ExpectOneError(RunTrainer({"--config=" + diloco.File()}),
                 {"strategy: unset -> capstan.diloco"});
  MustTrain(RunText(diloco).Train("resume_with_changes: \"strategy\""));
}

}  // namespace
}  // namespace capstan
