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
using ::testing::Not;

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
  // Steps 3 and 6 are in the midst of an exchange, too.
  for (const char* fields : {"", "deltas: INT8", "parts: 2 overlap_steps: 2"}) {
    const RunText run =
        SmallRun(DiLoCo(absl::StrCat("local_steps: 4 ", fields)), 2);
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

// Who reads the shared model waits for exchanges that are under way.
TEST(DiLoCoTest, SavesAndEvaluationsDoNotChangeAStreamedCurve) {
  const auto run = [](const std::string& train) {
    return MustTrain(
        SmallRun(DiLoCo("local_steps: 4 parts: 4 overlap_steps: 3"), 2)
            .Set("eval_data", TextData(CorpusPiece(2000), 32))
            .Train(train));
  };
  const std::string plain = run("save_every: 0");
  const std::string busy = run("save_every: 1 eval_every: 1");
  EXPECT_EQ(ReadMetrics(busy).losses(), ReadMetrics(plain).losses());
  EXPECT_TRUE(ReadText(busy + kWeights) == ReadText(plain + kWeights));
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

// 8 sequences in micro-batches of 2: each site has the same ones.
RunText RunOfSites(int sites, int ranks_of_each) {
  return SmallRun(DiLoCo(absl::StrCat(
                      "local_steps: 4 parts: 2 overlap_steps: 1 site_ranks: ",
                      ranks_of_each)),
                  sites * ranks_of_each)
      .Set("eval_data", TextData(CorpusPiece(2000), 32));
}

void ExpectNear(const std::vector<double>& got,
                const std::vector<double>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(got[i], want[i], 1e-5 * want[i]) << i;
  }
}

// Its ranks train one replica: they are one rank with more micro-steps.
TEST(DiLoCoTest, ASiteOfTwoRanksTrainsLikeOneRank) {
  const std::string two = MustTrain(RunOfSites(2, 2));
  const std::string one = MustTrain(RunOfSites(2, 1));
  ExpectNear(ReadMetrics(two).losses(), ReadMetrics(one).losses());
  ExpectNear(ReadMetrics(two).grad_norms(), ReadMetrics(one).grad_norms());
  // In the midst of a round each takes over the other's replicas.
  const std::string folder = KilledAfter(6, two);
  const TrainerResult other = RunTrainer(
      {"--config=" +
       RunOfSites(2, 1).Output(folder).Train("resume: AUTO").File()});
  EXPECT_EQ(other.exit_code, 0) << other.err;
  EXPECT_THAT(other.out, Not(HasSubstr("begins again")));
  ExpectNear(ReadMetrics(folder).losses(), ReadMetrics(one).losses());
  // And on as many ranks, to the bit.
  const std::string same = KilledAfter(6, two);
  MustTrain(RunOfSites(2, 2).Output(same).Train("resume: AUTO"));
  EXPECT_EQ(ReadMetrics(same).losses(), ReadMetrics(two).losses());
  EXPECT_TRUE(ReadText(same + kWeights) == ReadText(two + kWeights));
}

// Two sites, then one, then two again: each time all begin with the model that
// the sites shared, and its momentum goes on.
TEST(DiLoCoTest, ASiteLeavesAndComesBack) {
  const std::string both = KilledAfter(6, MustTrain(RunOfSites(2, 2)));
  const auto goes_on = [](int sites, int steps, const std::string& folder) {
    const TrainerResult result =
        RunTrainer({"--config=" +
                    RunOfSites(sites, 2)
                        .Output(folder)
                        .Train(absl::StrCat("resume: AUTO max_steps: ", steps))
                        .File()});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  // The model that one site begins with.
  const std::string begun = KilledAfter(6, both);
  goes_on(1, 6, begun);
  EXPECT_NEAR(LossOf(begun + "/final"),
              LossOf(both + "/checkpoints/step-00000006"), 1e-6);
  EXPECT_THAT(goes_on(1, 9, both),
              HasSubstr("WARNING: the run had 2 replicas, now it has 1"));
  const std::string alone = KilledAfter(9, both);
  EXPECT_THAT(goes_on(2, 12, alone),
              HasSubstr("WARNING: the run had 1 replica, now it has 2"));
  const std::vector<double> losses = ReadMetrics(alone).losses();
  ASSERT_EQ(losses.size(), 12);
  EXPECT_LT(losses.back(), losses[5]);
  // Where replicas hardly move, the momentum of both sites moves the model.
  const std::string still = KilledAfter(6, both);
  MustTrain(RunOfSites(1, 2)
                .Output(still)
                .Set("optimizer",
                     "[plugin/capstan.adamw.Config] { learning_rate: 1e-12 }")
                .Train("resume: AUTO max_steps: 8 "
                       "resume_with_changes: \"optimizer.learning_rate\""));
  EXPECT_GT(std::abs(LossOf(still + "/final") - LossOf(begun + "/final")),
            1e-4);
}

TEST(DiLoCoTest, AnErrorOfTheStrategyWithinNamesItsField) {
  const auto error = [](const std::string& fields) {
    return RunTrainer(
        {"--config=" +
         SmallRun(DiLoCo(absl::StrCat(
                      "site_ranks: 2 inner { [plugin/capstan.fsdp.Config] { ",
                      fields, " } }")),
                  2)
             .File()});
  };
  ExpectOneError(error("prefetch: -1"), {"strategy.inner.prefetch"});
  ExpectOneError(error("shard_group_size: 3"),
                 {"strategy.inner.shard_group_size"});
}

TEST(DiLoCoTest, SitesMustBeOfOneSize) {
  ExpectOneError(
      RunTrainer({"--config=" +
                  SmallRun(DiLoCo("site_ranks: 2"), 3).Batch(1, 9).File()}),
      {"strategy.site_ranks", "doesn't divide this run's 3 ranks"});
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
