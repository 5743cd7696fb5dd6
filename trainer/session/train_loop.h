// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_TRAIN_LOOP_H_
#define CAPSTAN_TRAINER_SESSION_TRAIN_LOOP_H_

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "plugins/sdk/memory.h"
#include "plugins/sdk/process_group.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/data/data_loader.h"
#include "trainer/data/data_order.h"
#include "trainer/launcher/rank_info.h"
#include "trainer/memory/memory_plan.h"
#include "trainer/metrics/reporter.h"
#include "trainer/profile/profiler.h"
#include "trainer/session/loss_scaler.h"
#include "trainer/session/model_card.h"
#include "trainer/session/run_parts.h"
#include "trainer/session/stop.h"
#include "trainer/session/strategy_runner.h"
#include "trainer/session/train_job.h"
#include "trainer/session/verdict.h"

namespace capstan {

// One rank's training, from joining the others to the last file. Every rank
// runs the same steps in the same order: what one rank learns alone (an error,
// a signal, a non-finite gradient) travels in the verdict that ends each step,
// and all act on the sum. On GPUs the update acts on it there, and the host
// one step later, so that it never waits for the device's newest work.
class TrainLoop {
 public:
  // When the host reads a step's verdict.
  enum class Verdicts {
    kAuto,    // late on GPUs, without loss scaling; else at once
    kAtOnce,  // before the update
    // An update later, which the device's own verdict rules. Not for loss
    // scaling, whose next scale depends on the verdict.
    kLate,
  };

  TrainLoop(TrainJob* job, const RankInfo& rank,
            Verdicts verdicts = Verdicts::kAuto);
  ~TrainLoop();

  // OK: all steps are done (by an earlier run, perhaps, of which nothing is
  // touched then). CANCELLED: stopped by a signal, and saved.
  // UNAVAILABLE: another rank failed; the error is that one's.
  absl::Status Run();

 private:
  // A step that has been issued.
  struct StepUnderWay {
    double start = 0.0;  // seconds of the steady clock
    double lr = 0.0;
    CommunicationStats communication;
    at::Tensor metrics;  // as LossSum has them, of this rank
  };

  absl::Status SetUp();
  absl::Status SetUpStrategy();
  // Machines may have different devices: the least able one is the run's.
  absl::Status AgreeOnDevice();
  absl::Status SettleOutputDir();
  // Each rank has planned its own; a resumed run's is in its folder.
  absl::Status CompareBatches();
  absl::Status Publish();
  void AllocateOptimizerState();
  absl::Status ResumeIfAsked();
  // Sets finished_before_.
  absl::Status CheckFinished();
  absl::Status CheckResumed(const TrainState& mine,
                            const std::string& checkpoint) const;
  absl::Status StartReporter();
  absl::Status NominalTargets();
  // micro_batch_size: AUTO: what was planned, if a step of it fits into memory
  // on all ranks; else about half of it, and so on.
  absl::Status SettleMicroBatch();
  absl::Status TryMicroBatch(bool* fits);
  absl::Status TryForwardAndBackward();
  void UseMicroBatch(int64_t size);

  bool GoesOn() const;
  absl::Status Step();
  absl::Status RunMicroSteps(Verdict* mine);
  absl::Status MicroStep(int index, Verdict* mine);
  // The step's batches, and of them StepInfo::totals.
  absl::Status SumTotals();
  absl::StatusOr<Batch> NextBatch();
  LossSum Forward(const Batch& batch);
  void Backward(const at::Tensor& loss_sum);
  // Sums the verdict over the ranks and heeds it, or leaves that to a later
  // CatchUp. `good`: this rank has done its micro-steps.
  absl::Status Agree(bool good, Verdict* verdict);
  // What ends a run.
  absl::Status Heed(const Verdict& verdict, int64_t step);
  // Concludes the last step if its verdict hasn't been read: before this
  // training's numbers or parameters are used for anything but steps.
  absl::Status CatchUp();
  GradientRule Rule() const;
  void Update(double lr, double gradient_scale);
  // The bookkeeping of a step that all ranks have done.
  absl::Status Conclude(const Verdict& verdict, const StepUnderWay& step);
  void Report(const Verdict& verdict, const Judgement& judgement,
              const StepUnderWay& step);
  CommunicationStats CommunicationOfStep() const;
  // The objective's numbers of all ranks, where they are due. Collective.
  TaggedNumbers SumMetrics(const at::Tensor& mine);
  int64_t LogEvery() const;

  // Evaluation and samples that the run owes for the step it has come to: those
  // that a signal has broken off before it was resumed.
  absl::Status TakeUp();
  absl::Status Evaluate();
  // Whether it is the best yet, and what follows; the same on all ranks.
  absl::Status Remember(double eval_loss);
  // Whether too many evaluations have brought nothing.
  bool OutOfPatience() const;
  absl::Status Generate(const std::string& title);
  absl::StatusOr<std::vector<Generation>> Sample(const std::string& title,
                                                 StopPoll* poll);
  // CANCELLED, on all ranks alike, ends the run after a checkpoint.
  absl::Status StopIfCancelled(const absl::Status& status);
  absl::Status Save();
  // An error, the same on all ranks, where the weights or the optimizer's state
  // aren't finite or have overflowed otherwise (NonFiniteTensor): at the start,
  // before they are saved, and once steps are skipped, when `at_minimum` says
  // that no smaller loss scale will help.
  absl::Status CheckStart();
  absl::Status CheckFinite();
  absl::Status CheckSkipped(bool at_minimum);
  // Of frozen parameters.
  absl::Status CheckFrozen();
  // Whether steps are skipped that no smaller loss scale will help, so that a
  // checkpoint of these weights mustn't take the place of an older one yet.
  bool AwaitsGoodStep() const;
  // An error, the same on all ranks, where the last steps have led nowhere.
  absl::Status CheckEnd();
  // The first tensor on any rank that isn't finite, by name. Collective.
  absl::StatusOr<absl::optional<std::string>> FirstNonFinite();
  // `error`, which all ranks have: summary.json says so. Collective.
  absl::Status Fail(const absl::Status& error);
  // With keep_best the weights of the best evaluation, if they aren't these.
  absl::Status RestoreBest();
  absl::Status SaveFinal();
  ModelCardFacts CardFacts() const;
  // The last evaluation, checkpoint and samples, and the final folder; a signal
  // leaves only the checkpoint.
  absl::Status SaveAll();
  absl::Status Finish();
  // What the run says when a signal has stopped it.
  absl::Status Stopped() const;
  absl::Status WriteProfile();
  absl::Status AgreeOnError(const absl::Status& mine, const char* what);
  RunSummary Summary();
  void AddSpeed(RunSummary* summary) const;
  void AddMemory(RunSummary* summary);
  std::vector<double> FromAllRanks(double mine);
  CheckpointParts Checkpointed();

  TrainJob* const job_;
  const RankInfo rank_;
  const RunConfig& config_;
  const Verdicts verdicts_;
  RunParts& parts_;

  std::unique_ptr<ProcessGroup> group_;
  LossScaler scaler_;
  StrategyRunner runner_;
  std::unique_ptr<DataLoader> loader_;
  std::unique_ptr<Reporter> reporter_;  // rank 0's
  std::unique_ptr<Profiler> profiler_;  // null: no step is profiled
  std::vector<std::vector<at::Tensor>> optimizer_state_;
  std::vector<SamplePrompt> prompts_;
  DataOrder order_;
  int64_t max_steps_ = 0;
  std::string config_text_;
  std::string output_dir_;

  std::unique_ptr<LateVerdict> late_;  // null: verdicts are read at once
  StepUnderWay under_way_;             // whose verdict is to be read
  double concluded_ = 0.0;             // when a step was, last
  // Of this step's micro-steps, on the device.
  at::Tensor loss_sum_;
  at::Tensor squared_sum_;     // Strategy::GradientSquaredSum
  at::Tensor metric_sums_;     // LossSum::metrics; undefined: none
  std::deque<Batch> batches_;  // of this step, read ahead of their turn
  TrainState state_;
  StepInfo info_;  // what the objective is told of a training step
  int64_t first_step_ = 0;
  // What the loss sum is divided by in backward, on all ranks alike: about the
  // targets of a step, so that gradients have their usual size. The exact
  // count, known at the step's end, is made up for in the update.
  double nominal_targets_ = 1.0;
  bool collectives_done_ = true;  // of this step, by this rank
  int64_t skipped_in_a_row_ = 0;
  bool told_no_targets_ = false;
  std::string micro_batch_note_;
  bool stopping_ = false;
  // A resumed run had done all its steps, and its final folder is there.
  bool finished_before_ = false;
  int64_t last_saved_step_ = -1;
  int64_t finite_step_ = -1;  // after which the weights were seen to be finite
  double ready_seconds_ = 0.0;
  absl::optional<double> eval_loss_;  // the last
  int64_t evaluated_step_ = -1;
  bool told_empty_evaluation_ = false;
  int64_t memory_before_ = 0;  // of this process, when it began to set up
  CommunicationStats communication_;  // when the step began
  std::vector<CommunicationStats> step_communication_;
  std::vector<double> step_seconds_;
  std::vector<double> step_tokens_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_TRAIN_LOOP_H_
