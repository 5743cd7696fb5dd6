// SPDX-License-Identifier: Apache-2.0
//
// One training step, in order: roll out, if the objective does; read a
// micro-batch, forward, backward; finish reducing gradients; reduce the step's
// sums over all ranks; scale, clip and update; publish; record.
#include "trainer/session/step.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/lost_peer.h"
#include "base/profile.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "cluster/comm/phase_group.h"
#include "cluster/launch/launcher.h"
#include "cluster/launch/progress.h"
#include "trainer/memory/tracking_allocator.h"
#include "trainer/optimizer/optimizer_state.h"
#include "trainer/profile/ranges.h"
#include "trainer/session/explain_failure.h"
#include "trainer/session/forgotten_rows.h"
#include "trainer/session/rollouts.h"
#include "trainer/session/schedule.h"
#include "trainer/session/whose_code.h"

namespace capstan {

absl::Status TrainStep::Run(DataLoader& loader) {
  const Range range("step", session_.state.step + 1);
  CAPSTAN_ASSIGN_OR_RETURN(StepInFlight step, Begin());
  if (session_.parts.objective->has_rollouts()) {
    if (witness_ != nullptr) witness_->MendWeights();
    const absl::Status rolled_out = RollOut(&session_, loader, &step);
    rollout_failed_ = !rolled_out.ok();
    CAPSTAN_RETURN_IF_ERROR(rolled_out);
    left_ = step.left;
    if (left_) return CatchUp();
  }
  CAPSTAN_ASSIGN_OR_RETURN(step, AccumulateWitnessed(std::move(step), loader));
  CAPSTAN_ASSIGN_OR_RETURN(step, Reduce(std::move(step)));
  CAPSTAN_ASSIGN_OR_RETURN(step, Update(std::move(step)));
  step = Count(std::move(step));
  if (deferred_ == nullptr) return Conclude(std::move(step), /*late=*/false);
  issued_ = std::move(step);
  return non_finite_.FindLateOrigin();
}

absl::Status TrainStep::BeginWitness() {
  if (!StepWitness::Wanted(session_)) return absl::OkStatus();
  witness_ = std::make_unique<StepWitness>(&session_);
  return witness_->Begin();
}

// Those of the state with which this process begins.
absl::Status TrainStep::BeginRecords() {
  const Train& train = session_.config.train();
  if (train.digests().write() && digests_ == nullptr) {
    digests_ = std::make_unique<RunDigests>(
        train.digests(), session_.output_dir,
        [this] { return session_.Checkpointed(); });
    CAPSTAN_RETURN_IF_ERROR(digests_->Begin(session_.state.step));
  }
  if (train.receipts() && receipts_ == nullptr) {
    receipts_ = std::make_unique<RunReceipts>(&session_, order_);
    CAPSTAN_RETURN_IF_ERROR(receipts_->Begin());
  }
  return absl::OkStatus();
}

absl::Status TrainStep::NoteReplaced(const char* why) {
  if (witness_ != nullptr) witness_->Replaced();
  if (receipts_ == nullptr) return absl::OkStatus();
  CAPSTAN_RETURN_IF_ERROR(CatchUp());
  return receipts_->Replaced(why);
}

absl::Status TrainStep::receipts_status() const {
  return receipts_ == nullptr ? absl::OkStatus() : receipts_->status();
}

absl::StatusOr<StepInFlight> TrainStep::Begin() {
  CAPSTAN_RETURN_IF_ERROR(BeginRecords());
  const TrainState& state = session_.state;
  StepInFlight step;
  step.number = state.step + 1;
  step.start = MonotonicSeconds();
  step.position = state.samples;
  step.before = session_.group->stats();
  FindWeightless(&step);
  if (profiler_ != nullptr) profiler_->BeginStep(step.number, step.before);
  return step;
}

void TrainStep::FindWeightless(StepInFlight* step) {
  const BatchPlan& plan = session_.job.batch;
  if (!forgotten_.empty()) {
    std::vector<int64_t> samples(plan.global_batch_size);
    samples_->At(step->position, absl::MakeSpan(samples));
    for (const int64_t sample : samples) {
      if (forgotten_.count(sample) > 0) step->forgotten.push_back(sample);
    }
  }
  if (step->forgotten.empty() &&
      plan.Shares(session_.mesh()).idle_ranks() == 0) {
    return;
  }
  for (int64_t i = 0; i < plan.accumulation; ++i) {
    const std::vector<int64_t> mine = SamplesOf(i);
    step->weightless.push_back(std::all_of(
        mine.begin(), mine.end(),
        [&](int64_t sample) { return forgotten_.count(sample) > 0; }));
  }
}

std::vector<int64_t> TrainStep::SamplesOf(int64_t index) {
  const BatchShares shares = session_.job.batch.Shares(session_.mesh());
  const int64_t first = shares.FirstSample(session_.data_rank(), index);
  if (first < 0) return {};
  std::vector<int64_t> samples(shares.micro_batch_size);
  samples_->At(session_.state.samples + first, absl::MakeSpan(samples));
  return samples;
}

// Reads, forward, backward; then the strategy has complete gradients. An error
// if this rank can't join the reduction, since it lost the others or skipped a
// collective; the others notice when it ends.
absl::StatusOr<StepInFlight> TrainStep::Accumulate(StepInFlight step,
                                                   DataLoader& loader) {
  Strategy& strategy = *session_.parts.strategy;
  const std::string name = absl::StrCat("step ", step.number);
  absl::Status& error = step.error;
  if (underflow_ != nullptr) underflow_->Clear();
  for (int i = 0; i < session_.job.batch.accumulation && error.ok(); ++i) {
    error = ExplainMemory(WhoseCode::Explain(CatchAll([&] {
                            return micro_steps_.Run(loader, i, &step);
                          })),
                          session_, i);
  }
  if (IsLostPeer(error)) return error;
  // Nothing that this rank still does is needed to end the others' step, unless
  // all compute it again: what it failed of may be what a witness sees, such as
  // weights that have come wrong.
  if (!error.ok() && witness_ == nullptr &&
      PhaseGroupOf(*session_.group) != nullptr) {
    return Annotate(error, name);
  }
  // Even after an error: the other ranks wait in these collectives.
  bool completed = false;
  try {
    {
      const ProfileScope profile(session_.phase = kBackwardPhase);
      const Range range("reduce");
      const WhoseCode code(session_.plugins.strategy, "FinishBackward");
      strategy.FinishBackward();
    }
    completed = true;
    const ProfileScope profile(session_.phase = kOptimizerPhase);
    const WhoseCode code(session_.plugins.strategy, "GradientSquaredSum");
    SumUp(&step);
    if (underflow_ != nullptr && error.ok()) AddUnderflow(&step);
  } catch (...) {
    if (error.ok()) {
      error = ExplainMemory(WhoseCode::Explain(CurrentExceptionToStatus()),
                            session_, -1);
    }
  }
  if (IsLostPeer(error)) return error;
  if (!completed) return Annotate(error, name);
  return step;
}

absl::StatusOr<StepInFlight> TrainStep::AccumulateWitnessed(
    StepInFlight step, DataLoader& loader) {
  if (witness_ == nullptr) return Accumulate(std::move(step), loader);
  StepInFlight begun = step;
  for (bool first = true;; first = false) {
    witness_->BeginStep();
    // What was gathered for the first attempt may be what was wrong.
    if (!first) {
      CAPSTAN_RETURN_IF_ERROR(session_.Publish(PublishCause::kRestored));
    }
    CAPSTAN_ASSIGN_OR_RETURN(step, Accumulate(std::move(step), loader));
    CAPSTAN_ASSIGN_OR_RETURN(const bool again, witness_->Again());
    if (!again) return step;
    // What rollouts have made is there from the start.
    for (Batch& batch : step.read) begun.ahead.push_back(std::move(batch));
    step = begun;
  }
}

void TrainStep::AddUnderflow(StepInFlight* step) const {
  const at::Tensor& counts = underflow_->counts();
  const auto own =
      static_cast<int64_t>(session_.parts.objective->metrics().size());
  const at::Tensor metrics = step->metrics.defined()
                                 ? step->metrics.to(at::kDouble).view({own, 2})
                                 : at::zeros({own, 2}, counts.options());
  step->metrics = at::cat({metrics, counts});
}

// This rank's loss and squared gradient norm.
void TrainStep::SumUp(StepInFlight* step) {
  Strategy& strategy = *session_.parts.strategy;
  const bool good = step->error.ok();  // all micro-steps have a loss
  if (sums_exactly_) {
    step->exact.gradient_squared =
        GradientSquares(strategy.OptimizerShards(), strategy.OwnedSlices());
    if (!good) return;
    for (const at::Tensor& loss : step->losses) {
      step->exact.loss.Add(loss.item<double>());
    }
    return;
  }
  step->gradient_squared_sum = strategy.GradientSquaredSum();
  if (deferred_ != nullptr) return;
  step->sums.gradient_squared_sum = step->gradient_squared_sum.item<double>();
  if (good) step->sums.loss_sum = step->loss_sum.item<double>();
}

// What was passed over to read this rank's micro-batches.
std::vector<BadSample> TrainStep::BadSamplesOfStep() {
  const ForgivingReader* const reader = session_.forgiving_train.get();
  if (reader == nullptr || !reader->any()) return {};
  std::vector<int64_t> samples;
  for (int64_t i = 0; i < session_.job.batch.accumulation; ++i) {
    const std::vector<int64_t> some = SamplesOf(i);
    samples.insert(samples.end(), some.begin(), some.end());
  }
  return reader->BadAmong(samples);
}

// One reduction over all ranks: loss, counts, gradient norm, failures, stops.
absl::StatusOr<StepInFlight> TrainStep::Reduce(StepInFlight step) {
  // A full disk ends the run now rather than after the last step.
  if (session_.reporter != nullptr) {
    step.error.Update(session_.reporter->status());
  }
  step.error.Update(session_.background_save.status());
  step.error.Update(receipts_status());
  StepSums& sums = step.sums;
  sums.failed_ranks = step.error.ok() ? 0.0 : 1.0;
  sums.stop_requests = StopRequested() != 0 ? 1.0 : 0.0;
  sums.saves_written = session_.background_save.written() ? 1.0 : 0.0;
  const bool mirroring =
      session_.mirror != nullptr && session_.mirror->pending();
  sums.mirrors_pending = mirroring ? 1.0 : 0.0;
  if (session_.control.Grown()) sums.stop_requests += kControlRequest;
  const int changes = WorldChanges();
  if (changes > 0 && session_.group->rank() == 0) {
    sums.stop_requests += kLeaveRequest;
  }
  if (changes > 1) sums.stop_requests += kSaveRequest;
  step.bad_samples = BadSamplesOfStep();
  sums.bad_samples = static_cast<double>(step.bad_samples.size());
  const absl::Status all = CatchAll([&] { return ReduceSums(&step); });
  if (!step.error.ok()) {
    return Annotate(step.error, absl::StrCat("step ", step.number));
  }
  CAPSTAN_RETURN_IF_ERROR(all);
  return step;
}

// With deferred sums this reads the previous step's: the device is long past
// them, and meanwhile has this step's micro-batches to work on.
absl::Status TrainStep::ReduceSums(StepInFlight* step) {
  const Range range("reduce sums");
  const at::Device device = session_.group->device();
  GpuMemory memory;
  if (device.is_cuda()) memory = ReadGpuMemory(device);
  if (micro_steps_.AddMemory(&memory)) records_.NoteMemory(memory);
  CAPSTAN_RETURN_IF_ERROR(CatchUp(/*late=*/true));
  step->rule = Rule();
  if (session_.parts.strategy->local_steps()) {
    StepSums replica = step->sums;
    ProcessGroup* const ranks = session_.parts.strategy->replica_group();
    if (ranks != nullptr) capstan::Reduce(*ranks, &replica);
    step->own = OutcomeOf(replica, step->rule);
    step->sums.gradient_squared_sum =
        step->own->grad_norm * step->own->grad_norm / session_.group->size();
  }
  if (deferred_ == nullptr) {
    capstan::Reduce(*session_.group, &step->sums,
                    device.is_cuda() ? &memory : nullptr,
                    sums_exactly_ ? &step->exact : nullptr);
    if (device.is_cuda()) step->memory = memory;
    return ActOn(step);
  }
  const bool good = step->error.ok();
  deferred_->set_memory(memory);
  deferred_->Reduce(
      step->sums, good ? step->loss_sum : at::Tensor(),
      good ? step->gradient_squared_sum : at::Tensor(), step->rule,
      *session_.group,
      good && step->metrics.defined()
          ? micro_steps_.metric_sums().ForRanks(
                step->metrics, session_.group->rank(), session_.group->size())
          : at::Tensor());
  return absl::OkStatus();
}

absl::Status TrainStep::CatchUp(bool late) {
  if (!issued_.has_value()) return absl::OkStatus();
  StepInFlight step = *std::exchange(issued_, absl::nullopt);
  step.sums = deferred_->Read();
  if (session_.group->device().is_cuda()) {
    step.memory = deferred_->largest_memory();
  }
  step.summed_metrics = deferred_->metrics();
  CAPSTAN_RETURN_IF_ERROR(ActOn(&step));
  CAPSTAN_RETURN_IF_ERROR(Conclude(std::move(step), late));
  // The state of the step just concluded, which the mirror already copies.
  if (session_.mirror != nullptr && session_.mirror->awaits_state()) {
    session_.RememberScale();
    session_.mirror->SetState(TrainStateText(session_.state));
  }
  return absl::OkStatus();
}

// Acts on failures and stop requests of any rank, and judges the step.
absl::Status TrainStep::ActOn(StepInFlight* step) {
  const StepSums& sums = step->sums;
  if (sums.failed_ranks > 0) {
    return LostPeerError(
        absl::StrCat("another rank failed in step ", step->number));
  }
  if (std::fmod(sums.stop_requests, kControlRequest) > 0) {
    session_.stopping = true;
    // All ranks read these sums, and take the signal of one that has it.
    const absl::Status stop =
        AgreeOrStop(*session_.group, StopStatus(), "stop");
    if (!absl::IsCancelled(stop)) return stop;
  }
  if (std::fmod(sums.stop_requests, kLeaveRequest) >= kControlRequest) {
    session_.control_requested = true;
  }
  if (std::fmod(sums.stop_requests, kSaveRequest) >= kLeaveRequest) {
    session_.leaving = true;
    session_.leaving_saves = sums.stop_requests >= kSaveRequest;
  }
  if (sums.saves_written == session_.group->size()) {
    session_.background_save.Complete();
  }
  if (session_.mirror != nullptr && sums.mirrors_pending == 0) {
    session_.mirror->NonePending(step->number);
  }
  step->outcome = OutcomeOf(sums, step->rule);
  if (step->own.has_value()) {
    step->outcome.grad_norm = std::sqrt(sums.gradient_squared_sum);
    step->outcome.gradient_scale = step->own->gradient_scale;
  }
  return absl::OkStatus();
}

GradientRule TrainStep::Rule() const {
  GradientRule rule;
  rule.nominal_targets = micro_steps_.nominal_targets();
  rule.loss_scale = session_.scaler.scale();
  rule.next_if_finite = session_.scaler.ScaleAfter(/*finite=*/true);
  rule.next_if_not = session_.scaler.ScaleAfter(/*finite=*/false);
  rule.max_norm = session_.config.train().max_grad_norm();
  rule.most_loss = spikes_.Limit(session_.state);
  rule.skip_spikes =
      std::isfinite(rule.most_loss) &&
      session_.config.train().loss_spikes().action() != LossSpikes::NOTE;
  return rule;
}

// Scales and clips the gradients, updates the masters, publishes them. With
// deferred sums the device decides whether the step is skipped.
absl::StatusOr<StepInFlight> TrainStep::Update(StepInFlight step) {
  step.lr = session_.parts.optimizer->learning_rate() *
            LearningRateMultiplier(session_.config.schedule(),
                                   session_.state.optimizer_steps,
                                   session_.max_steps);
  if (digests_ != nullptr) digests_->Gradients(step.number);
  if (deferred_ != nullptr || !step.outcome.skipped) {
    CAPSTAN_RETURN_IF_ERROR(UpdateShards(step));
  }
  Strategy& strategy = *session_.parts.strategy;
  if (strategy.local_steps()) session_.BeforeChange();
  CAPSTAN_RETURN_IF_ERROR(
      CallStrategy("EndStep", [&] { strategy.EndStep(step.number); }));
  if (witness_ != nullptr) {
    CAPSTAN_RETURN_IF_ERROR(witness_->EndStep());
    step.witness_failures = witness_->failures_of_step();
  }
  if (digests_ != nullptr) {
    CAPSTAN_RETURN_IF_ERROR(digests_->Write(step.number));
  }
  if (receipts_ != nullptr) {
    CAPSTAN_RETURN_IF_ERROR(receipts_->Digest(&step.digest));
  }
  return step;
}

absl::Status TrainStep::UpdateShards(const StepInFlight& step) {
  const ProfileScope profile(session_.phase = kOptimizerPhase);
  session_.BeforeChange();
  RunParts& parts = session_.parts;
  OptimizerStep update;
  update.step = session_.state.optimizer_steps + 1;
  update.learning_rate = step.lr;
  update.gradient_scale =
      deferred_ != nullptr ? 1.0 : step.outcome.gradient_scale;
  absl::Span<OptimizerShard> shards = parts.strategy->OptimizerShards();
  for (size_t i = 0; i < shards.size(); ++i) {
    if (deferred_ != nullptr) {
      // Synchronizes only if a shard is offloaded to host memory.
      update.device_scale = deferred_->scale().to(shards[i].master.device());
    }
    if (witness_ != nullptr) witness_->BeforeUpdate(i);
    {
      const WhoseCode code(session_.plugins.optimizer, "Update");
      CAPSTAN_RETURN_IF_ERROR(ExplainMemory(
          UpdateShard(parts.optimizer_name, step.number, *parts.optimizer,
                      update, *parts.model, shards[i],
                      absl::MakeSpan(session_.optimizer_state[i])),
          session_, -1));
    }
    if (witness_ != nullptr) witness_->AfterUpdate(i);
    CAPSTAN_RETURN_IF_ERROR(CallStrategy("PublishShard", [&] {
      parts.strategy->PublishShard(static_cast<int>(i));
    }));
  }
  return CallStrategy("PublishParameters", [&] {
    parts.strategy->PublishParameters(PublishCause::kUpdated);
  });
}

absl::Status TrainStep::CallStrategy(const char* function,
                                     const std::function<void()>& call) {
  const absl::Status status = CatchAll([&] {
    const WhoseCode code(session_.plugins.strategy, function);
    call();
    return absl::OkStatus();
  });
  return Annotate(WhoseCode::Explain(status),
                  absl::StrCat("step ", session_.state.step + 1));
}

// From here on it is one of the run's steps, though a GPU may still be at it.
StepInFlight TrainStep::Count(StepInFlight step) {
  session_.phase = "";
  const CommunicationStats after = session_.group->stats();
  if (profiler_ != nullptr) profiler_->EndStep(after);
  ++session_.state.step;
  session_.state.samples += session_.job.batch.global_batch_size;
  const CommunicationStats& before = step.before;
  step.communication.bytes_sent = after.bytes_sent - before.bytes_sent;
  step.communication.busy_seconds = after.busy_seconds - before.busy_seconds;
  // A rank may wait for longer than a collective takes, on a busy machine.
  step.communication.exposed_seconds =
      std::min(after.exposed_seconds - before.exposed_seconds,
               step.communication.busy_seconds);
  // The reduction has its own copies.
  step.loss_sum = step.gradient_squared_sum = at::Tensor();
  return step;
}

// Bookkeeping of a step that all ranks completed.
absl::Status TrainStep::Conclude(StepInFlight step, bool late) {
  TrainState& state = session_.state;
  const StepSums& sums = step.sums;
  const StepOutcome& outcome = step.outcome;
  if (!outcome.skipped) ++state.optimizer_steps;
  if (outcome.finite && sums.count == 0 && session_.reporter != nullptr &&
      !std::exchange(told_no_targets_, true)) {
    session_.Note(
        absl::StrCat("step ", state.step,
                     ": the batch has no targets, so that there is no update; "
                     "other such batches won't be told of"));
  }
  if (sums.bad_samples > 0) {
    CAPSTAN_RETURN_IF_ERROR(ShareBadSamples("train_data", step.bad_samples,
                                            &session_, &state.bad_samples));
  }
  const bool at_minimum = session_.scaler.at_minimum();
  if (outcome.finite) {
    non_finite_.Finite();
  } else {
    CAPSTAN_RETURN_IF_ERROR(non_finite_.Explain(step, late));
  }
  session_.scaler.Update(outcome.finite);
  CAPSTAN_RETURN_IF_ERROR(divergence_.AfterStep(outcome.finite, at_minimum));
  state.tokens += static_cast<int64_t>(sums.tokens);
  state.trained_tokens += static_cast<int64_t>(sums.trained);
  state.padding += static_cast<int64_t>(sums.padding);
  if (sums.count > 0) divergence_.TakeLoss(sums.loss_sum / sums.count);
  if (receipts_ != nullptr) receipts_->Write(step);
  records_.Record(step, JudgeLoss(step));
  return absl::OkStatus();
}

// Returns the score of a loss that is a spike, and takes others into the
// window.
absl::optional<double> TrainStep::JudgeLoss(const StepInFlight& step) {
  const StepSums& sums = step.sums;
  const StepOutcome& outcome = step.outcome;
  absl::optional<double> score;
  if (!spikes_.enabled() || !outcome.finite || sums.count == 0) return score;
  TrainState& state = session_.state;
  const LossSpikes& config = session_.config.train().loss_spikes();
  const double loss = sums.loss_sum / sums.count;
  if (outcome.spike) {
    score = spikes_.Score(state, loss);
    session_.Note(SpikeText(config, state, loss, *score), kSpikeEvent);
    session_.going_back = config.action() == LossSpikes::GO_BACK;
  }
  if (spikes_.Take(loss, outcome.spike, &state)) {
    session_.going_back = false;
    session_.Note(absl::StrCat(
        "step ", state.step,
        ": as many losses in a row were as high: this is the new level, by "
        "which further losses are judged"));
  }
  return score;
}

// ---- Before the first step.

TrainStep::TrainStep(Session* session, Divergence* divergence,
                     StepRecords* records)
    : session_(*session),
      spikes_(session->config.train().loss_spikes()),
      divergence_(*divergence),
      records_(*records),
      micro_steps_(session),
      non_finite_(session, divergence, &order_, &micro_steps_) {}

absl::Status TrainStep::SetUp(Profiler* profiler, DataOrder order) {
  profiler_ = profiler;
  order_ = std::move(order);
  samples_.emplace(order_);
  forgotten_ = ForgottenRows(session_.config.train());
  const at::Device device = session_.group->device();
  // A graph's scale comes from the host.
  const bool scaled_graphs =
      session_.scaler.enabled() && session_.config.train().cuda_graphs();
  // The host scales each replica's gradients by its own sums.
  const bool local_steps = session_.parts.strategy->local_steps();
  if (session_.parts.fp8.has_value() && session_.parts.fp8->log_underflow) {
    underflow_ = std::make_unique<Fp8Underflow>(device);
  }
  if (DefersSums(device) && !scaled_graphs && !local_steps) {
    deferred_ = std::make_unique<DeferredSums>(
        device, device.is_cuda() ? session_.group->size() : 0,
        static_cast<int>(
            micro_steps_.metric_sums().numbers(session_.group->size())));
  }
  sums_exactly_ = deferred_ == nullptr && !local_steps &&
                  SumsExactly(session_.config.train(), session_.parts);
  return micro_steps_.SetUp(deferred_.get(), sums_exactly_);
}

}  // namespace capstan
