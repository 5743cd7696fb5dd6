// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_SESSION_H_
#define CAPSTAN_TRAINER_SESSION_SESSION_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "plugins/sdk/process_group.h"
#include "trainer/checkpoint/background_save.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/data/forgiving_reader.h"
#include "trainer/launcher/rank_info.h"
#include "trainer/metrics/reporter.h"
#include "trainer/session/loss_scaler.h"
#include "trainer/session/run_parts.h"
#include "trainer/session/strategy_runner.h"
#include "trainer/watch/ledger.h"

namespace capstan {

// A phase of the step (profiler.h), which the ledger gets to know, too; "":
// none.
class CurrentPhase {
 public:
  CurrentPhase& operator=(const char* phase) {
    phase_ = phase;
    LogPhase(phase);
    return *this;
  }
  operator const char*() const { return phase_; }

 private:
  const char* phase_ = "";
};

// State shared by the parts of one rank's training: the step (step.h), its
// records (step_records.h), evaluation (evaluator.h), checkpoints
// (run_checkpoints.h) and the divergence check (divergence.h). Each holds a
// pointer to it, and it outlives them. What only one part uses belongs to that
// part.
struct Session {
  Session(TrainJob* job, const RankInfo& rank)
      : job(*job),
        config(job->loaded.config),
        parts(job->parts),
        rank(rank),
        runner(job->parts.strategy.get(),
               CheckpointingOf(config.train(), *job->parts.model),
               &job->parts.model->units()),
        scaler(job->parts.policy().loss_scaling) {}

  TrainJob& job;
  const RunConfig& config;
  RunParts& parts;
  RankInfo rank;

  // Set during set-up.
  std::unique_ptr<ProcessGroup> group;
  std::string output_dir;
  std::string config_text;
  std::unique_ptr<Reporter> reporter;  // rank 0's; null on the others
  // Read in the place of parts.train_data and parts.eval_data if samples may be
  // passed over (train.skip_bad_samples); else null.
  std::unique_ptr<ForgivingReader> forgiving_train;
  std::unique_ptr<ForgivingReader> forgiving_eval;
  // optimizer_state[shard][k] belongs to Optimizer::state_names()[k].
  std::vector<std::vector<at::Tensor>> optimizer_state;
  int64_t first_step = 0;  // steps done before this process resumed the run
  // What it goes on from, for errors and notes: a checkpoint's folder, "the
  // mirror of step 7"; "": nothing.
  std::string resumed_from;
  // Lines for the user about that.
  std::vector<std::string> resume_notes;
  // The evaluation after first_step was cut short, and is done again.
  bool evaluate_again = false;
  int64_t max_steps = 0;

  StrategyRunner runner;
  LossScaler scaler;
  TrainState state;
  BackgroundSave background_save;
  SavingCost saving_cost;
  absl::optional<double> eval_loss;  // the latest
  bool stopping = false;             // a rank received a signal; agreed by all
  CurrentPhase phase;

  // What training samples are read from.
  const DatasetReader& train_reader() const {
    if (forgiving_train != nullptr) return *forgiving_train;
    return *parts.train_data;
  }
  // Whether the ranks were started again after a death: the run goes on from
  // its last state, whatever train.resume says.
  bool Restarted() const { return rank.restart > 0; }
  // This rank's state to save or restore.
  CheckpointParts Checkpointed();
  // Updates the model's working copies from the masters.
  absl::Status Publish();
  // Progress so far: a summary without speed and memory.
  RunSummary Progress() const;
  // Whether too many consecutive evaluations brought no lower loss.
  bool OutOfPatience() const {
    const int64_t patience = config.train().early_stopping_patience();
    return patience > 0 && state.evals_without_better >= patience;
  }
  // Whether another step is to be done.
  bool GoesOn() const {
    return state.step < max_steps && !OutOfPatience() && !stopping;
  }
  // CANCELLED, the same on all ranks, ends the run after a checkpoint; other
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

// The error of a process that a plugin ended by exit(code) in the midst of
// training: the step, the phase, and whose code runs in it. `on_main`: on the
// thread that trains.
std::string ExitText(const Session& session, int code, bool on_main);

// Whether something is due at `step`, every `every` steps; 0: never.
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
