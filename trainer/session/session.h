// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_SESSION_H_
#define CAPSTAN_TRAINER_SESSION_SESSION_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "cluster/launch/rank_info.h"
#include "cluster/watch/ledger.h"
#include "plugins/sdk/process_group.h"
#include "trainer/checkpoint/background_save.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/mirror.h"
#include "trainer/data/forgiving_reader.h"
#include "trainer/metrics/reporter.h"
#include "trainer/session/control.h"
#include "trainer/session/loss_scaler.h"
#include "trainer/session/phase_clock.h"
#include "trainer/session/run_parts.h"
#include "trainer/session/strategy_runner.h"
#include "trainer/session/whose_code.h"

namespace capstan {

// The phase of the step (profiler.h), "" if none; assigning it also records it
// in the ledger, and times the one before.
class CurrentPhase {
 public:
  CurrentPhase& operator=(const char* phase) {
    phase_ = phase;
    LogPhase(phase);
    clock_.Enter(phase);
    return *this;
  }
  operator const char*() const { return phase_; }
  PhaseClock& clock() { return clock_; }

 private:
  const char* phase_ = "";
  PhaseClock clock_;
};

PluginNames PluginNamesOf(const RunConfig& config);

// What a run is, constant on each rank once SetUp (set_up.h) has settled it.
struct RunPlan {
  RunPlan(TrainJob* job, const RankInfo& rank)
      : job(*job),
        config(job->loaded.config),
        parts(job->parts),
        rank(rank),
        plugins(PluginNamesOf(config)) {}

  TrainJob& job;
  const RunConfig& config;
  RunParts& parts;
  RankInfo rank;
  const PluginNames plugins;
  std::unique_ptr<ProcessGroup> group;
  // The ranks that divide this rank's micro-batches with it; null: none.
  std::unique_ptr<ProcessGroup> sequence_group;
  std::string output_dir;
  std::string config_text;
  int64_t max_steps = 0;

  Mesh mesh() const { return MeshOf(config.train(), group->size()); }
  // Whose samples this rank computes, of mesh().data; and whether it counts
  // them, as one of the ranks that share them does.
  int data_rank() const { return mesh().index(MeshAxis::kData, group->rank()); }
  bool counts() const {
    return mesh().index(MeshAxis::kSequence, group->rank()) == 0;
  }
  // Whether the ranks were restarted after a death, so that the run continues
  // from its last state, whatever train.resume says.
  bool Restarted() const { return rank.restart > 0; }
};

// Data that evaluations measure.
struct EvaluatedData {
  std::string set;     // "": eval_data
  std::string slot;    // for errors: "eval_data", "eval_sets.NAME"
  std::string plugin;  // with its slot
  const DatasetReader* reader = nullptr;
  // Read instead if bad samples may be skipped; otherwise null.
  std::unique_ptr<ForgivingReader> forgiving;
  // A set's, as TrainState::bad_eval_samples; found anew by a resumed run.
  std::vector<int64_t> bad_samples;
};

// One rank's training: the plan, what the rank owns, and how far the run is.
// What only one part uses (the step, its records, evaluations, checkpoints, the
// divergence check: rank_run.h) belongs to that part. The parts hold a pointer
// to this, which outlives them; what the plan suffices for takes only that.
struct Session : RunPlan {
  Session(TrainJob* job, const RankInfo& rank)
      : RunPlan(job, rank),
        runner(job->parts.strategy.get(),
               CheckpointingOf(config.train(), *job->parts.model),
               &job->parts.model->units(), &plugins),
        scaler(job->parts.policy().loss_scaling) {}

  // What the rank owns, made during set-up.
  HeldFolder folder;                   // output_dir; rank 0's
  RunIdentity identity;                // rank 0's; empty on the others
  ControlFile control;                 // rank 0's, with train.control
  std::unique_ptr<Reporter> reporter;  // rank 0's; null on the others
  // Read instead of parts.train_data if bad samples may be skipped
  // (train.skip_bad_samples); otherwise null.
  std::unique_ptr<ForgivingReader> forgiving_train;
  // What evaluations read, in the order of RunParts::evaluated.
  std::vector<EvaluatedData> evaluated;
  // optimizer_state[shard][k] belongs to Optimizer::state_names()[k].
  std::vector<std::vector<at::Tensor>> optimizer_state;
  StrategyRunner runner;
  BackgroundSave background_save;
  std::unique_ptr<Mirror> mirror;  // null: the state isn't mirrored

  // What the run resumes from, for errors and notes: a checkpoint's folder or
  // "the mirror of step 7"; "" if it doesn't.
  std::string resumed_from;
  std::vector<std::string> resume_notes;  // lines for the user about that
  int64_t first_step = 0;  // steps done before this process resumed the run
  // Whether the evaluation after first_step was interrupted and must be
  // repeated.
  bool evaluate_again = false;
  // What a load has found for RestorePlugins: once it is known that the run may
  // go on from there.
  struct LoadedState {
    std::string bytes;  // "": nothing
    std::string file;
  };
  LoadedState loaded_objective;
  LoadedState loaded_model;
  // Whether state.initial_crc32c is of this process's model.
  bool initial_weights_known = false;
  // The files that they came from then, with sizes and times.
  std::string initial_files;

  // How far the run is.
  TrainState state;
  LossScaler scaler;
  SavingCost saving_cost;
  TaggedNumbers measured;     // by the latest evaluation
  bool end_was_told = false;  // max_steps was, by train.control
  bool stopping = false;      // a rank received a signal; agreed by all
  // The ranks leave after this step, and the run goes on with other hosts;
  // agreed by all.
  bool leaving = false;
  // Mirrors mayn't outlive that: a checkpoint is saved first.
  bool leaving_saves = false;
  // control has grown; agreed by all.
  bool control_requested = false;
  // A loss spike asks for the last checkpoint (LossSpikes::GO_BACK); agreed by
  // all. With deferred sums TrainStep::CatchUp may still withdraw it.
  bool going_back = false;
  CurrentPhase phase;

  // The reader of training samples.
  const DatasetReader& train_reader() const {
    if (forgiving_train != nullptr) return *forgiving_train;
    return *parts.train_data;
  }
  // This rank's state to save or restore.
  CheckpointParts Checkpointed();
  // Call before that state changes: copies of it may still be under way.
  void BeforeChange();
  // Takes the loss scale into `state`.
  void RememberScale();
  // Gives the plugins their states that a load has found. Collective; all ranks
  // get the same outcome.
  absl::Status RestorePlugins();
  // Calls `forwards` while forwards compute with the model that the ranks share
  // (Strategy::local_steps).
  absl::Status WithSharedModel(const std::function<absl::Status()>& forwards);
  // Updates the model's working copies from the masters.
  absl::Status Publish(PublishCause cause);
  // Returns a summary of the progress so far, without speed and memory.
  RunSummary Progress() const;
  // Whether too many consecutive evaluations didn't lower the loss.
  bool OutOfPatience() const {
    const int64_t patience = config.train().early_stopping_patience();
    return patience > 0 && state.evals_without_better >= patience;
  }
  // Whether another step is to be done.
  bool GoesOn() const {
    return state.step < max_steps && !OutOfPatience() && !stopping && !leaving;
  }
  // Makes CANCELLED, which all ranks get, end the run after a checkpoint;
  // returns other errors.
  absl::Status StopIfCancelled(const absl::Status& status) {
    if (!absl::IsCancelled(status)) return status;
    stopping = true;
    return absl::OkStatus();
  }
  // On rank 0 prints a line for the user, which becomes an event, too. Without
  // a kind it is kWarningEvent or kNoteEvent, by its first word.
  void Note(const std::string& line, const char* kind = nullptr) const;
  // On rank 0 writes an event that isn't printed.
  void Event(const RunEvent& event) const {
    if (reporter != nullptr) reporter->Event(event);
  }
  // Both, of an event with an id.
  void Tell(const RunEvent& event) const {
    if (reporter != nullptr) reporter->Note(event.text);
    Event(event);
  }
};

// Shares the bad samples `mine` with all ranks: adds them to *known
// (TrainState's), and notes each new one. FAILED_PRECONDITION on all ranks once
// the run has skipped more than train.skip_bad_samples. `data` names the
// dataset, "train_data". Collective.
absl::Status ShareBadSamples(const std::string& data,
                             const std::vector<BadSample>& mine,
                             Session* session, std::vector<int64_t>* known);

// Whether something is due at `step`, every `every` steps; 0: never.
inline bool Due(int64_t every, int64_t step) {
  return every > 0 && step % every == 0;
}

// Whether final/ gets the best evaluation's weights. Early stopping implies it,
// since otherwise the run would end with worse weights (transformers'
// EarlyStoppingCallback requires load_best_model_at_end).
inline bool KeepsBest(const Train& train) {
  return train.keep_best() || train.early_stopping_patience() > 0;
}

constexpr char kEvalLoss[] = "eval_loss";

// What the best evaluation is found by: a name in metrics.jsonl.
inline std::string BestMetric(const Train& train) {
  return train.best_metric().empty() ? kEvalLoss : train.best_metric();
}
// By what the tasks say of their metrics, or by how its name ends.
bool LowerIsBetter(const std::string& metric,
                   const evaluate::TaskSuite* tasks = nullptr);
// An error about train.best_metric, which isn't among `known`.
absl::Status NoSuchMetric(const std::string& metric,
                          const std::vector<std::string>& known);

// Returns train.log_every, or its default.
inline int64_t LogEvery(const Train& train) {
  constexpr int64_t kDefault = 10;
  return train.log_every() > 0 ? train.log_every() : kDefault;
}

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_SESSION_H_
