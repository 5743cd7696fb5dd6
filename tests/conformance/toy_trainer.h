// SPDX-License-Identifier: Apache-2.0
//
// One rank's training of the toy under a strategy, step by step as the core's
// loop (trainer/session/step.cc) does it.
#ifndef CAPSTAN_TESTS_CONFORMANCE_TOY_TRAINER_H_
#define CAPSTAN_TESTS_CONFORMANCE_TOY_TRAINER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/sdk/strategy.h"
#include "tests/conformance/plugin_under_test.h"
#include "tests/conformance/toy_model.h"
#include "tests/conformance/toy_training.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/session/loss_scaler.h"
#include "trainer/session/strategy_runner.h"

namespace capstan {
namespace conformance {

struct ToyRun {
  PrecisionPolicy precision;
  int accumulation = 1;
  int recompute_every = 0;     // ActivationCheckpointing::every
  bool matrices = false;       // ToyOptimizer's
  bool deterministic = false;  // StrategyRequest's and StrategyContext's
};

// A fault in a step.
struct StepFault {
  int rank = 0;
  int micro_step = 0;
  bool out_of_data = false;  // no forward at all
  ToyFault fault = ToyFault::kNone;
};

struct StepOutcome {
  double loss = 0.0;
  double norm = 0.0;
  bool applied = false;
  double failed_ranks = 0.0;
};

class ToyTrainer {
 public:
  // Checks that the strategy accepts the run.
  static absl::Status Check(const LoadedPluginUnderTest& plugin,
                            const ToyRun& run, int world);
  static absl::StatusOr<StrategyPlan> Plan(const LoadedPluginUnderTest& plugin,
                                           const ToyRun& run, int world);

  static absl::StatusOr<std::unique_ptr<ToyTrainer>> Create(
      const LoadedPluginUnderTest& plugin, const ToyRun& run,
      ProcessGroup* group);

  // Returns an error only if the ranks have lost each other. A step in which a
  // rank has failed updates nothing.
  absl::StatusOr<StepOutcome> Step(const std::vector<StepFault>& faults = {});

  // The loss sum of this rank's evaluation batch, or of `batch_of`'s, by the
  // shared model if there is one; completes the forward even if it throws.
  double Evaluate(ToyFault fault = ToyFault::kNone, int batch_of = -1);
  // Acts as a rank that can't run the others' forward.
  void EvaluateNothing() {
    UseSharedModel(true);
    strategy_->FinishForward();
    UseSharedModel(false);
  }

  // Collective.
  absl::Status Save(const std::string& output_dir);
  absl::Status Load(const std::string& output_dir);

  Strategy& strategy() { return *strategy_; }
  const ToyModel& model() const { return model_; }
  const ToyRun& run() const { return run_; }
  // One tensor per shard.
  std::vector<at::Tensor> momenta() const;

 private:
  struct Verdict {
    double loss_sum = 0.0;
    double count = 0.0;
    double squared_sum = 0.0;
    double failed_ranks = 0.0;
  };

  ToyTrainer(const ToyRun& run, ProcessGroup* group,
             std::unique_ptr<Strategy> strategy);
  absl::Status SetUp();
  void MicroStep(int index, const std::vector<StepFault>& faults,
                 Verdict* mine);
  void UseSharedModel(bool use);
  double Unscale(const Verdict& verdict) const;
  absl::optional<Verdict> OwnVerdict(Verdict* mine) const;
  StepOutcome Act(const Verdict& verdict, const absl::optional<Verdict>& own);
  CheckpointParts Checkpointed();

  const ToyRun run_;
  ProcessGroup* const group_;
  ToyModel model_;
  // Declared after the model, so destroyed before it.
  const std::unique_ptr<Strategy> strategy_;
  StrategyRunner runner_;
  ToyOptimizer optimizer_;
  LossScaler scaler_;
  std::vector<std::vector<at::Tensor>> optimizer_state_;
  TrainState state_;
};

}  // namespace conformance
}  // namespace capstan

#endif  // CAPSTAN_TESTS_CONFORMANCE_TOY_TRAINER_H_
