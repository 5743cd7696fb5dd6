// SPDX-License-Identifier: Apache-2.0
//
// One training step, in order: read a micro-batch, forward, backward; finish
// reducing gradients; reduce the step's sums over all ranks; scale, clip and
// update; publish; record.
#include "trainer/session/step.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/full.h>
#include <signal.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/lost_peer.h"
#include "base/profile.h"
#include "plugins/sdk/memory.h"
#include "trainer/launcher/launcher.h"
#include "trainer/optimizer/optimizer_state.h"
#include "trainer/plugin_host/plugin_host.h"
#include "trainer/process_group/agree.h"
#include "trainer/process_group/phase_group.h"
#include "trainer/session/evaluator.h"
#include "trainer/session/schedule.h"

namespace capstan {

absl::Status TrainStep::Run(DataLoader& loader) {
  Session& session = session_;
  TrainState& state = session.state;
  IssuedStep step;
  step.start = MonotonicSeconds();
  const CommunicationStats before = session.group->stats();
  if (profiler_ != nullptr) profiler_->BeginStep(state.step + 1, before);

  // Read, forward, backward; then the strategy has complete gradients.
  StepSums sums;  // this rank's, until ReduceSums
  absl::Status mine = AccumulateGradients(loader, &sums);
  // A rank that lost the others or skipped a collective can't join the
  // reduction; the others notice when it ends.
  if (IsLostPeer(mine)) return mine;
  if (!completed_) {
    return Annotate(mine, absl::StrCat("step ", state.step + 1));
  }
  // A full disk ends the run now rather than after the last step.
  if (session.reporter != nullptr) mine.Update(session.reporter->status());

  // One reduction over all ranks: loss, counts, gradient norm, failures, stops.
  sums.failed_ranks = mine.ok() ? 0.0 : 1.0;
  sums.stop_requests = StopRequested() != 0 ? 1.0 : 0.0;
  const absl::Status all = ReduceSums(mine.ok(), &sums);
  if (!mine.ok()) {
    return Annotate(mine, absl::StrCat("step ", state.step + 1));
  }
  CAPSTAN_RETURN_IF_ERROR(all);

  // Scale and clip the gradients, update the masters, publish them.
  step.lr = session.parts.optimizer->learning_rate() *
            LearningRateMultiplier(session.config.schedule(),
                                   state.optimizer_steps, session.max_steps);
  if (deferred_ != nullptr) {
    CAPSTAN_RETURN_IF_ERROR(Update(step.lr, 1.0));
  } else if (const StepOutcome outcome = OutcomeOf(sums, Rule());
             !outcome.skipped) {
    CAPSTAN_RETURN_IF_ERROR(Update(step.lr, outcome.gradient_scale));
  }

  // Count and record it.
  session.phase = "";
  const CommunicationStats after = session.group->stats();
  if (profiler_ != nullptr) profiler_->EndStep(after);
  ++state.step;
  state.samples += session.job.batch.global_batch_size;
  step.communication.bytes_sent = after.bytes_sent - before.bytes_sent;
  step.communication.busy_seconds = after.busy_seconds - before.busy_seconds;
  step.communication.exposed_seconds =
      after.exposed_seconds - before.exposed_seconds;
  step.metrics = metric_sums_;
  if (deferred_ == nullptr) return Conclude(sums, step);
  issued_ = step;
  return absl::OkStatus();
}

absl::Status TrainStep::AccumulateGradients(DataLoader& loader,
                                            StepSums* mine) {
  Strategy& strategy = *session_.parts.strategy;
  const BatchPlan& plan = session_.job.batch;
  loss_sum_ = squared_sum_ = metric_sums_ = at::Tensor();
  absl::Status status;
  for (int i = 0; i < plan.accumulation && status.ok(); ++i) {
    status = CatchAll([&] { return MicroStep(loader, i, mine); });
  }
  if (IsLostPeer(status)) return status;
  if (absl::IsResourceExhausted(status)) {
    status = Annotate(status, absl::StrCat("out of memory; lower "
                                           "batch.micro_batch_size (now ",
                                           plan.micro_batch_size, ")"));
  }
  completed_ = false;
  // Nothing that this rank still does is needed to end the others' step.
  if (!status.ok() && PhaseGroupOf(*session_.group) != nullptr) return status;
  // Even after an error: the other ranks wait in these collectives.
  try {
    {
      const ProfileScope profile(session_.phase = kBackwardPhase);
      strategy.FinishBackward();
    }
    completed_ = true;
    const ProfileScope profile(session_.phase = kOptimizerPhase);
    squared_sum_ = strategy.GradientSquaredSum();
    if (deferred_ == nullptr) {
      mine->gradient_squared_sum = squared_sum_.item<double>();
      if (status.ok()) mine->loss_sum = loss_sum_.item<double>();
    }
  } catch (...) {
    if (status.ok()) status = CurrentExceptionToStatus();
  }
  return status;
}

absl::Status TrainStep::MicroStep(DataLoader& loader, int index,
                                  StepSums* mine) {
  // First: if anything below fails, FinishBackward still knows the step.
  if (index == 0) session_.parts.strategy->BeginStep(session_.state.step + 1);
  session_.parts.strategy->BeginMicroStep(
      index, static_cast<int>(session_.job.batch.accumulation));
  if (index == 0) CAPSTAN_RETURN_IF_ERROR(SumTotals(loader));
  CAPSTAN_ASSIGN_OR_RETURN(const Batch batch, NextBatch(loader));
  const LossSum loss = Forward(batch);
  Backward(loss.sum);

  const at::Tensor sum = loss.sum.detach().to(at::kDouble);
  loss_sum_ = loss_sum_.defined() ? loss_sum_ + sum : sum;
  if (loss.metrics.defined()) {
    metric_sums_ =
        metric_sums_.defined() ? metric_sums_ + loss.metrics : loss.metrics;
  }
  mine->count += static_cast<double>(loss.count);
  mine->tokens += static_cast<double>(loss.tokens);
  mine->trained +=
      static_cast<double>(loss.trained < 0 ? loss.count : loss.trained);
  mine->padding += static_cast<double>(loss.padding);
  return absl::OkStatus();
}

LossSum TrainStep::Forward(const Batch& batch) {
  const ProfileScope profile(session_.phase = kForwardPhase);
  const MemoryScope scope(MemoryCategory::kActivations);
  return session_.parts.objective->Compute(*session_.parts.model, batch, info_,
                                           session_.runner);
}

void TrainStep::Backward(const at::Tensor& loss_sum) {
  const ProfileScope profile(session_.phase = kBackwardPhase);
  const MemoryScope scope(MemoryCategory::kWorkspace);
  const at::Tensor scale = at::full(
      {}, session_.scaler.scale() / nominal_targets_, loss_sum.options());
  torch::autograd::backward({loss_sum}, {scale});
}

// `good`: this rank completed its micro-steps. With deferred sums this reads
// the previous step's: the device is long past them, and meanwhile has this
// step's micro-batches to work on.
absl::Status TrainStep::ReduceSums(bool good, StepSums* sums) {
  return CatchAll([&]() -> absl::Status {
    if (deferred_ == nullptr) {
      Reduce(*session_.group, sums);
      return ActOn(*sums, session_.state.step + 1);
    }
    CAPSTAN_RETURN_IF_ERROR(CatchUp());
    deferred_->Reduce(*sums, good ? loss_sum_ : at::Tensor(),
                      good ? squared_sum_ : at::Tensor(), Rule(),
                      *session_.group);
    return absl::OkStatus();
  });
}

absl::Status TrainStep::CatchUp() {
  if (deferred_ == nullptr || !deferred_->pending()) return absl::OkStatus();
  const StepSums sums = deferred_->Read();
  CAPSTAN_RETURN_IF_ERROR(ActOn(sums, session_.state.step));
  return Conclude(sums, issued_);
}

// Acts on failures and stop requests of any rank.
absl::Status TrainStep::ActOn(const StepSums& sums, int64_t step) {
  if (sums.failed_ranks > 0) {
    return LostPeerError(absl::StrCat("another rank failed in step ", step));
  }
  if (sums.stop_requests > 0) {
    session_.stopping = true;
    AdoptStop(SIGTERM);
  }
  return absl::OkStatus();
}

GradientRule TrainStep::Rule() const {
  GradientRule rule;
  rule.nominal_targets = nominal_targets_;
  rule.loss_scale = session_.scaler.scale();
  rule.max_norm = session_.config.train().max_grad_norm();
  return rule;
}

absl::Status TrainStep::Update(double lr, double gradient_scale) {
  const ProfileScope profile(session_.phase = kOptimizerPhase);
  RunParts& parts = session_.parts;
  OptimizerStep step;
  step.step = session_.state.optimizer_steps + 1;
  step.learning_rate = lr;
  step.gradient_scale = gradient_scale;
  absl::Span<OptimizerShard> shards = parts.strategy->OptimizerShards();
  for (size_t i = 0; i < shards.size(); ++i) {
    if (deferred_ != nullptr) {
      // Synchronizes only if a shard is offloaded to host memory.
      step.device_scale = deferred_->scale().to(shards[i].master.device());
    }
    CAPSTAN_RETURN_IF_ERROR(UpdateShard(
        parts.optimizer_name, session_.state.step + 1, *parts.optimizer, step,
        *parts.model, shards[i], absl::MakeSpan(session_.optimizer_state[i])));
    parts.strategy->PublishShard(static_cast<int>(i));
  }
  parts.strategy->PublishParameters();
  return absl::OkStatus();
}

// Bookkeeping of a step that all ranks completed.
absl::Status TrainStep::Conclude(const StepSums& sums, const IssuedStep& step) {
  TrainState& state = session_.state;
  const StepOutcome outcome = OutcomeOf(sums, Rule());
  if (!outcome.skipped) ++state.optimizer_steps;
  if (outcome.finite && outcome.skipped && session_.reporter != nullptr &&
      !std::exchange(told_no_targets_, true)) {
    session_.Note(
        absl::StrCat("step ", state.step,
                     ": the batch has no targets, so that there is no update; "
                     "other such batches won't be told of"));
  }
  const bool at_minimum = session_.scaler.at_minimum();
  session_.scaler.Update(outcome.finite);
  CAPSTAN_RETURN_IF_ERROR(divergence_.AfterStep(outcome.finite, at_minimum));
  state.tokens += static_cast<int64_t>(sums.tokens);
  if (state.trained_tokens >= 0) {
    state.trained_tokens += static_cast<int64_t>(sums.trained);
    state.padding += static_cast<int64_t>(sums.padding);
  }
  if (sums.count > 0) state.last_loss = sums.loss_sum / sums.count;
  records_.Record(sums, outcome, step);
  return absl::OkStatus();
}

// ---- A step's batches.

// Sums Objective::StepTotals over all ranks' micro-batches of the step, which
// it prefetches for that.
absl::Status TrainStep::SumTotals(DataLoader& loader) {
  const Objective& objective = *session_.parts.objective;
  batches_.clear();
  if (objective.step_totals() == 0) return absl::OkStatus();
  std::vector<double> sums(objective.step_totals(), 0.0);
  std::deque<Batch> batches;
  const absl::Status status = CatchAll([&]() -> absl::Status {
    for (int64_t i = 0; i < session_.job.batch.accumulation; ++i) {
      CAPSTAN_ASSIGN_OR_RETURN(Batch batch, NextBatch(loader));
      AddStepTotals(objective, batch, info_, &sums);
      batches.push_back(std::move(batch));
    }
    return absl::OkStatus();
  });
  // Even after an error: the other ranks wait here.
  session_.group->AllReduceHost(absl::MakeSpan(sums));
  batches_ = std::move(batches);
  info_.totals = std::move(sums);
  return status;
}

absl::StatusOr<Batch> TrainStep::NextBatch(DataLoader& loader) {
  const ProfileScope profile(session_.phase = kDataPhase);
  if (batches_.empty()) return loader.Next();
  Batch next = std::move(batches_.front());
  batches_.pop_front();
  return next;
}

// ---- Before the first step.

TrainStep::TrainStep(Session* session, Divergence* divergence,
                     StepRecords* records)
    : session_(*session), divergence_(*divergence), records_(*records) {
  info_.seed = session->config.train().seed();
  info_.training = true;
}

absl::Status TrainStep::SetUp(ReadSums read, Profiler* profiler) {
  profiler_ = profiler;
  const at::Device device = session_.group->device();
  if (read == ReadSums::kDeferred ||
      (read == ReadSums::kAuto && device.is_cuda() &&
       !session_.scaler.enabled())) {
    deferred_ = std::make_unique<DeferredSums>(device);
  }
  // Averages a few samples, since a single one may have no targets.
  const DatasetReader& data = *session_.parts.train_data;
  const int64_t samples = std::min<int64_t>(8, data.size());
  int64_t targets = 0;
  for (int64_t i = 0; i < samples; ++i) {
    CAPSTAN_ASSIGN_OR_RETURN(const Batch batch, ReadBatch(data, {i}, at::kCPU));
    try {
      targets += session_.parts.objective->CountTargets(batch, info_);
    } catch (const std::invalid_argument& error) {
      const RunConfig& config = session_.config;
      return session_.job.loaded.Locate(
          absl::InvalidArgumentError(absl::StrCat(
              PackageOf(TypeOf(config.train_data())),
              " doesn't give what the objective ",
              PackageOf(TypeOf(config.objective())), " reads: ", error.what())),
          "train_data");
    }
  }
  nominal_targets_ =
      std::max(static_cast<double>(targets) / static_cast<double>(samples),
               1.0) *
      static_cast<double>(session_.job.batch.global_batch_size);
  return absl::OkStatus();
}

absl::Status TrainStep::Try(const std::vector<int64_t>& samples,
                            bool* completed) {
  const RunParts& parts = session_.parts;
  *completed = false;
  absl::Status status = CatchAll([&]() -> absl::Status {
    parts.strategy->BeginStep(session_.state.step + 1);
    parts.strategy->BeginMicroStep(0, 1);
    CAPSTAN_ASSIGN_OR_RETURN(
        const Batch batch,
        ReadBatch(*parts.train_data, samples, session_.group->device()));
    info_.totals = parts.objective->StepTotals(batch, info_);
    Backward(Forward(batch).sum);
    return absl::OkStatus();
  });
  if (IsLostPeer(status)) return status;
  if (!status.ok() && PhaseGroupOf(*session_.group) != nullptr) return status;
  try {
    parts.strategy->FinishBackward();
    *completed = true;
  } catch (...) {
    if (status.ok()) status = CurrentExceptionToStatus();
  }
  return status;
}

}  // namespace capstan
