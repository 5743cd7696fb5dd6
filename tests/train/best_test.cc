// SPDX-License-Identifier: Apache-2.0
//
// What follows from evaluations: the best checkpoint, and an early end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/toy_model.h"
#include "tests/testing/run_folder.h"
#include "tests/train/toy_run.h"
#include "tests/train/toy_wrappers.h"
#include "trainer/checkpoint/checkpoint.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ToyRun WithLosses(std::vector<double> losses, const std::string& train) {
  ToyRun run;
  run.eval_losses = std::move(losses);
  run.train = "eval_every: 2 eval_batches: 1 keep_checkpoints: 1 " + train;
  return run;
}

// Whether final/ has the weights of that step's checkpoint.
bool FinalIsOf(const std::string& folder, int64_t step) {
  const conformance::ToyModel model;
  const auto initial = [&model](int index, uint64_t seed, float* out) {
    return model.InitialValue(index, seed, 0, model.parameters()[index].numel(),
                              out);
  };
  char name[32];
  snprintf(name, sizeof(name), "/checkpoints/step-%08d",
           static_cast<int>(step));
  const auto weights =
      CheckpointWeights(folder + name, model.parameters(), initial);
  EXPECT_TRUE(weights.ok()) << weights.status();
  if (!weights.ok()) return false;
  std::string bytes;
  for (const at::Tensor& weight : *weights) {
    bytes.append(static_cast<const char*>(weight.const_data_ptr()),
                 weight.nbytes());
  }
  const std::string file = ReadText(folder + "/final/model.safetensors");
  return file.size() > bytes.size() &&
         file.compare(file.size() - bytes.size(), bytes.size(), bytes) == 0;
}

TEST(BestTest, ItsCheckpointStaysAndItsWeightsAreFinal) {
  for (const int ranks : {1, 2}) {
    ToyRun run = WithLosses({5, 3, 4, 4, 6}, "max_steps: 10 keep_best: true");
    run.ranks = ranks;
    run.micro_batch = 2;
    run.global_batch = 4;
    const std::string folder = MustTrain(run);
    EXPECT_THAT(CheckpointSteps(folder), ElementsAre(4, 10));
    EXPECT_TRUE(FinalIsOf(folder, 4));
    EXPECT_FALSE(FinalIsOf(folder, 10));
    EXPECT_THAT(Printed(folder), HasSubstr("weights of step 4"));
    const auto summary = ReadJson(folder + "/summary.json");
    // Rank 1 evaluates nothing that counts.
    EXPECT_EQ(summary["best_eval_loss"], 3.0);
    EXPECT_EQ(summary["best_step"], 4);
    EXPECT_EQ(summary["eval_loss"], 6.0);
  }
}

TEST(BestTest, WithoutItTheLastWeightsAreFinal) {
  const std::string folder = MustTrain(WithLosses({3, 4, 5}, "max_steps: 6"));
  EXPECT_THAT(CheckpointSteps(folder), ElementsAre(6));
  EXPECT_TRUE(FinalIsOf(folder, 6));
}

TEST(BestTest, TheLastStepMayBeTheBest) {
  const std::string folder =
      MustTrain(WithLosses({5, 4, 3}, "max_steps: 6 keep_best: true"));
  EXPECT_THAT(CheckpointSteps(folder), ElementsAre(6));
  EXPECT_TRUE(FinalIsOf(folder, 6));
}

TEST(BestTest, LossesThatArentFiniteAreNeverBest) {
  const std::string folder = MustTrain(
      WithLosses({std::nan(""), 4, -HUGE_VAL}, "max_steps: 6 keep_best: true"));
  EXPECT_TRUE(FinalIsOf(folder, 4));
}

TEST(BestTest, SurvivesAResume) {
  // The second part alone has only worse evaluations.
  ToyRun run = WithLosses({3, 4}, "max_steps: 4 keep_best: true");
  run.output_dir = MustTrain(run);
  EXPECT_TRUE(FinalIsOf(run.output_dir, 2));
  run.eval_losses = {5, 6};
  run.train =
      "eval_every: 2 eval_batches: 1 keep_checkpoints: 1 max_steps: 8 "
      "keep_best: true resume: AUTO";
  MustTrain(run);
  EXPECT_THAT(CheckpointSteps(run.output_dir), ElementsAre(2, 8));
  EXPECT_TRUE(FinalIsOf(run.output_dir, 2));
}

// The number at the end is 1, those before are 0; another is always 1.
TEST(BestTest, IsByTheMetricThatIsNamed) {
  ToyRun run;
  run.rich_objective = true;
  const std::string train =
      "eval_every: 2 keep_checkpoints: 1 keep_best: true resume: AUTO ";
  run.train = train + "max_steps: 6 best_metric: \"eval_last_time\"";
  run.output_dir = MustTrain(run);
  EXPECT_TRUE(FinalIsOf(run.output_dir, 6));
  auto summary = ReadJson(run.output_dir + "/summary.json");
  EXPECT_EQ(summary["best_eval_last_time"], 1.0);
  // Resumed by another one, it looks for the best anew.
  run.train = train + "max_steps: 10 best_metric: \"eval_first\"";
  MustTrain(run);
  summary = ReadJson(run.output_dir + "/summary.json");
  EXPECT_EQ(summary["best_eval_first"], 1.0);
  EXPECT_EQ(summary["best_step"], 8);
  // What no evaluation measures ends no run, but is told.
  run.train = train + "max_steps: 12 best_metric: \"eval_second\"";
  MustTrain(run);
  EXPECT_THAT(Printed(run.output_dir),
              HasSubstr("no evaluation measures eval_second: set it to one of "
                        "eval_loss"));
  EXPECT_TRUE(FinalIsOf(run.output_dir, 12));
}

// An evaluation file that became shorter, which one rank notices.
TEST(BestTest, ARunThatAnEvaluationEndsSavesItsStep) {
  for (const bool sharded : {false, true}) {
    ToyRun run;
    run.ranks = 2;
    run.sharded = sharded;
    run.micro_batch = 2;
    run.global_batch = 4;
    run.train = "max_steps: 6 eval_every: 2 resume: AUTO";
    run.change = [](int rank, RunParts* parts) {
      const auto fault = [rank](int64_t) {
        return rank == 1 ? absl::DataLossError("eval.jsonl became shorter")
                         : absl::OkStatus();
      };
      parts->eval_data =
          std::make_unique<WrappedData>(std::move(parts->eval_data), fault);
    };
    EXPECT_THAT(MustFail(&run),
                AllOf(HasSubstr("eval.jsonl became shorter"),
                      HasSubstr("step-00000002 is its newest checkpoint"),
                      HasSubstr("go on with train.resume=AUTO")));
    EXPECT_THAT(CheckpointSteps(run.output_dir), ElementsAre(2));
    run.change = nullptr;
    MustTrain(run);
    EXPECT_EQ(ReadMetrics(run.output_dir).steps.size(), 6);
  }
}

TEST(BestTest, PatienceEndsTheRun) {
  ToyRun run =
      WithLosses({5, 3, 4, 3.5, 1}, "max_steps: 10 early_stopping_patience: 2");
  run.ranks = 2;
  run.micro_batch = 2;
  run.global_batch = 4;
  run.output_dir = MustTrain(run);
  EXPECT_EQ(ReadMetrics(run.output_dir).steps.size(), 8);
  EXPECT_EQ(ReadJson(run.output_dir + "/summary.json")["status"], "completed");
  // What follows the best was worse.
  EXPECT_THAT(CheckpointSteps(run.output_dir), ElementsAre(4, 8));
  EXPECT_TRUE(FinalIsOf(run.output_dir, 4));
  EXPECT_THAT(Printed(run.output_dir), HasSubstr("2 evaluations without"));
  // It doesn't go on when it is resumed.
  run.eval_losses = {2};
  run.train += " resume: AUTO";
  MustTrain(run);
  EXPECT_EQ(ReadMetrics(run.output_dir).steps.size(), 8);
}

TEST(BestTest, PatienceStartsAnewWithAnotherMetric) {
  ToyRun run;
  run.rich_objective = true;
  const std::string train =
      "eval_every: 2 early_stopping_patience: 1 resume: AUTO ";
  run.train = train + "max_steps: 8 best_metric: \"eval_deterministic\"";
  run.output_dir = MustTrain(run);
  EXPECT_EQ(ReadMetrics(run.output_dir).steps.size(), 4);
  run.train = train + "max_steps: 8 best_metric: \"eval_first\"";
  MustTrain(run);
  EXPECT_GT(ReadMetrics(run.output_dir).steps.size(), 4);
}

TEST(BestTest, PatienceCountsAcrossAResume) {
  ToyRun run = WithLosses({3, 4}, "max_steps: 4 early_stopping_patience: 2");
  run.output_dir = MustTrain(run);
  run.eval_losses = {5, 1};
  run.train =
      "eval_every: 2 eval_batches: 1 keep_checkpoints: 1 max_steps: 12 "
      "early_stopping_patience: 2 resume: AUTO";
  MustTrain(run);
  EXPECT_EQ(ReadMetrics(run.output_dir).steps.size(), 6);
}

}  // namespace
}  // namespace capstan
