// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_SESSION_H_
#define CAPSTAN_TRAINER_SESSION_SESSION_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "plugins/sdk/process_group.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/launcher/rank_info.h"
#include "trainer/metrics/reporter.h"
#include "trainer/session/loss_scaler.h"
#include "trainer/session/run_parts.h"
#include "trainer/session/strategy_runner.h"

namespace capstan {

// What the parts of one rank's training share: the step (step.h), its records
// (step_records.h), evaluation (evaluator.h), checkpoints (run_checkpoints.h)
// and the watch over the weights (divergence.h). Each takes a pointer to it,
// and it outlives them. What only one part uses is that part's own.
struct Session {
  Session(TrainJob* job, const RankInfo& rank)
      : job(*job),
        config(job->loaded.config),
        parts(job->parts),
        rank(rank),
        runner(job->parts.strategy.get(),
               CheckpointingOf(config.train(), *job->parts.model)),
        scaler(job->parts.policy().loss_scaling) {}

  TrainJob& job;
  const RunConfig& config;
  RunParts& parts;
  const RankInfo rank;

  // From set-up on.
  std::unique_ptr<ProcessGroup> group;
  std::string output_dir;
  std::string config_text;
  std::unique_ptr<Reporter> reporter;  // rank 0's; null on the others
  // optimizer_state[shard][k] belongs to Optimizer::state_names()[k].
  std::vector<std::vector<at::Tensor>> optimizer_state;
  int64_t first_step = 0;  // done before this process resumed the run
  int64_t max_steps = 0;

  StrategyRunner runner;
  LossScaler scaler;
  TrainState state;
  absl::optional<double> eval_loss;  // of the last evaluation
  bool stopping = false;  // a signal has come to a rank, and all know it

  // What a checkpoint is made from and restored into, of this rank.
  CheckpointParts Checkpointed();
  // Has the model compute with what the masters now hold.
  absl::Status Publish();
  // How far the run has come: a summary without its speed and memory.
  RunSummary Progress() const;
  // Whether too many evaluations in a row have brought no lower loss.
  bool OutOfPatience() const {
    const int64_t patience = config.train().early_stopping_patience();
    return patience > 0 && state.evals_without_better >= patience;
  }
  // Whether there is another step to do.
  bool GoesOn() const {
    return state.step < max_steps && !OutOfPatience() && !stopping;
  }
  // CANCELLED, on all ranks alike, ends the run after a checkpoint; other
  // errors are returned.
  absl::Status StopIfCancelled(const absl::Status& status) {
    if (!absl::IsCancelled(status)) return status;
    stopping = true;
    return absl::OkStatus();
  }
  // A line for the user, from rank 0.
  void Note(const std::string& line) const {
    if (reporter != nullptr) reporter->Note(line);
  }
};

// Whether something is due every `every` steps; 0: never.
inline bool Due(int64_t every, int64_t step) {
  return every > 0 && step % every == 0;
}

// train.log_every, or its default.
inline int64_t LogEvery(const Train& train) {
  constexpr int64_t kDefault = 10;
  return train.log_every() > 0 ? train.log_every() : kDefault;
}

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_SESSION_H_
