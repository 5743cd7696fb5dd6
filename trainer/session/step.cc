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
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/lost_peer.h"
#include "base/profile.h"
#include "plugins/sdk/memory.h"
#include "trainer/launcher/launcher.h"
#include "trainer/memory/tracking_allocator.h"
#include "trainer/optimizer/optimizer_state.h"
#include "trainer/plugin_host/plugin_host.h"
#include "trainer/process_group/agree.h"
#include "trainer/process_group/gpu_tools.h"
#include "trainer/process_group/phase_group.h"
#include "trainer/profile/ranges.h"
#include "trainer/session/bad_samples.h"
#include "trainer/session/evaluator.h"
#include "trainer/session/out_of_memory.h"
#include "trainer/session/schedule.h"

namespace capstan {

absl::Status TrainStep::Run(DataLoader& loader) {
  Session& session = session_;
  TrainState& state = session.state;
  const Range range("step", state.step + 1);
  if (session.config.train().digests().write() && digests_ == nullptr) {
    digests_ = std::make_unique<RunDigests>(&session_);
    CAPSTAN_RETURN_IF_ERROR(digests_->Begin());
  }
  IssuedStep step;
  step.start = MonotonicSeconds();
  step.position = state.samples;
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
  mine.Update(session.background_save.status());

  // One reduction over all ranks: loss, counts, gradient norm, failures, stops.
  sums.failed_ranks = mine.ok() ? 0.0 : 1.0;
  sums.stop_requests = StopRequested() != 0 ? 1.0 : 0.0;
  sums.saves_written = session.background_save.written() ? 1.0 : 0.0;
  step.bad_samples = BadSamplesOfStep();
  sums.bad_samples = static_cast<double>(step.bad_samples.size());
  const absl::Status all = ReduceSums(mine.ok(), &sums);
  if (!mine.ok()) {
    return Annotate(mine, absl::StrCat("step ", state.step + 1));
  }
  CAPSTAN_RETURN_IF_ERROR(all);

  // Scale and clip the gradients, update the masters, publish them.
  step.lr = session.parts.optimizer->learning_rate() *
            LearningRateMultiplier(session.config.schedule(),
                                   state.optimizer_steps, session.max_steps);
  if (digests_ != nullptr) digests_->Gradients(state.step + 1);
  CAPSTAN_RETURN_IF_ERROR(UpdateUnlessSkipped(sums, step.lr));
  if (digests_ != nullptr) {
    CAPSTAN_RETURN_IF_ERROR(digests_->Write(state.step + 1));
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
  step.memory = largest_memory_;
  step.metrics = metric_sums_;
  step.losses = std::move(losses_);
  if (deferred_ == nullptr) return Conclude(sums, step, /*late=*/false);
  issued_ = std::move(step);
  return non_finite_.FindLateOrigin();
}

absl::Status TrainStep::AccumulateGradients(DataLoader& loader,
                                            StepSums* mine) {
  Strategy& strategy = *session_.parts.strategy;
  const BatchPlan& plan = session_.job.batch;
  loss_sum_ = squared_sum_ = metric_sums_ = at::Tensor();
  losses_.clear();
  absl::Status status;
  for (int i = 0; i < plan.accumulation && status.ok(); ++i) {
    status = ExplainMemory(CatchAll([&] { return MicroStep(loader, i, mine); }),
                           session_, i);
  }
  if (IsLostPeer(status)) return status;
  completed_ = false;
  // Nothing that this rank still does is needed to end the others' step.
  if (!status.ok() && PhaseGroupOf(*session_.group) != nullptr) return status;
  // Even after an error: the other ranks wait in these collectives.
  try {
    {
      const ProfileScope profile(session_.phase = kBackwardPhase);
      const Range range("reduce");
      strategy.FinishBackward();
    }
    completed_ = true;
    const ProfileScope profile(session_.phase = kOptimizerPhase);
    if (exact_.has_value()) {
      SumExactly(status.ok());
    } else {
      squared_sum_ = strategy.GradientSquaredSum();
    }
    if (deferred_ == nullptr && !exact_.has_value()) {
      mine->gradient_squared_sum = squared_sum_.item<double>();
      if (status.ok()) mine->loss_sum = loss_sum_.item<double>();
    }
  } catch (...) {
    if (status.ok()) {
      status = ExplainMemory(CurrentExceptionToStatus(), session_, -1);
    }
  }
  return status;
}

// `good`: all micro-steps have a loss.
void TrainStep::SumExactly(bool good) {
  const Strategy& strategy = *session_.parts.strategy;
  exact_ = ExactSums();
  exact_->gradient_squared = GradientSquares(
      session_.parts.strategy->OptimizerShards(), strategy.OwnedSlices());
  if (!good) return;
  for (const at::Tensor& loss : losses_) exact_->loss.Add(loss.item<double>());
}

absl::Status TrainStep::MicroStep(DataLoader& loader, int index,
                                  StepSums* mine) {
  const Range range("micro-step", index);
  // First: if anything below fails, FinishBackward still knows the step.
  if (index == 0) session_.parts.strategy->BeginStep(session_.state.step + 1);
  session_.parts.strategy->BeginMicroStep(
      index, static_cast<int>(session_.job.batch.accumulation));
  if (index == 0) CAPSTAN_RETURN_IF_ERROR(SumTotals(loader));
  CAPSTAN_ASSIGN_OR_RETURN(const Batch batch, NextBatch(loader));
  const LossSum loss = ForwardBackward(batch);

  const at::Tensor sum = loss.sum.to(at::kDouble);
  loss_sum_ = loss_sum_.defined() ? loss_sum_ + sum : sum;
  losses_.push_back(sum);
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

LossSum TrainStep::Forward(const Batch& batch, UnitRunner& runner) {
  const ProfileScope profile(session_.phase = kForwardPhase);
  const MemoryScope scope(MemoryCategory::kActivations);
  return session_.parts.objective->Compute(*session_.parts.model, batch, info_,
                                           runner);
}

double TrainStep::HostScale() const {
  return session_.scaler.scale() / nominal_targets_;
}

void TrainStep::Backward(const at::Tensor& loss_sum, const at::Tensor& scale) {
  const ProfileScope profile(session_.phase = kBackwardPhase);
  const MemoryScope scope(MemoryCategory::kWorkspace);
  torch::autograd::backward({loss_sum}, {scale});
}

// Of the loss's type. While the last step's sums are still on the device, so is
// the loss scale that follows from them.
at::Tensor TrainStep::BackwardScale(const at::Tensor& loss_sum) const {
  if (deferred_ != nullptr && deferred_->pending() &&
      deferred_->next_loss_scale().defined()) {
    const at::Tensor& scale = deferred_->next_loss_scale();
    return (scale / at::full({}, nominal_targets_, scale.options()))
        .to(loss_sum.scalar_type());
  }
  return at::full({}, HostScale(), loss_sum.options());
}

LossSum TrainStep::ForwardBackward(const Batch& batch) {
  if (graphs_ != nullptr) return graphs_->Run(batch, info_.totals);
  LossSum loss = Forward(batch, session_.runner);
  Backward(loss.sum, BackwardScale(loss.sum));
  loss.sum = loss.sum.detach();
  return loss;
}

// `good`: this rank completed its micro-steps. With deferred sums this reads
// the previous step's: the device is long past them, and meanwhile has this
// step's micro-batches to work on.
absl::Status TrainStep::ReduceSums(bool good, StepSums* sums) {
  const Range range("reduce sums");
  return CatchAll([&]() -> absl::Status {
    const at::Device device = session_.group->device();
    GpuMemory memory;
    if (device.is_cuda()) memory = ReadGpuMemory(device);
    if (graphs_ != nullptr) {
      graphs_->AddMemory(&memory);
      records_.NoteMemory(memory);
    }
    if (deferred_ == nullptr) {
      Reduce(*session_.group, sums, device.is_cuda() ? &memory : nullptr,
             exact_.has_value() ? &*exact_ : nullptr);
      if (device.is_cuda()) largest_memory_ = memory;
      return ActOn(*sums, session_.state.step + 1);
    }
    CAPSTAN_RETURN_IF_ERROR(CatchUp(/*late=*/true));
    deferred_->set_memory(memory);
    deferred_->Reduce(*sums, good ? loss_sum_ : at::Tensor(),
                      good ? squared_sum_ : at::Tensor(), Rule(),
                      *session_.group, good ? metric_sums_ : at::Tensor());
    return absl::OkStatus();
  });
}

absl::Status TrainStep::CatchUp(bool late) {
  if (deferred_ == nullptr || !deferred_->pending()) return absl::OkStatus();
  const StepSums sums = deferred_->Read();
  if (session_.group->device().is_cuda()) {
    issued_.memory = deferred_->largest_memory();
  }
  issued_.summed_metrics = deferred_->metrics();
  CAPSTAN_RETURN_IF_ERROR(ActOn(sums, session_.state.step));
  return Conclude(sums, issued_, late);
}

absl::Status TrainStep::UpdateUnlessSkipped(const StepSums& sums, double lr) {
  if (deferred_ != nullptr) return Update(lr, 1.0);
  const StepOutcome outcome = OutcomeOf(sums, Rule());
  return outcome.skipped ? absl::OkStatus()
                         : Update(lr, outcome.gradient_scale);
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
  if (sums.saves_written == session_.group->size()) {
    session_.background_save.Complete();
  }
  return absl::OkStatus();
}

GradientRule TrainStep::Rule() const {
  GradientRule rule;
  rule.nominal_targets = nominal_targets_;
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

absl::Status TrainStep::Update(double lr, double gradient_scale) {
  const ProfileScope profile(session_.phase = kOptimizerPhase);
  session_.background_save.BeforeChange();
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
    CAPSTAN_RETURN_IF_ERROR(ExplainMemory(
        UpdateShard(parts.optimizer_name, session_.state.step + 1,
                    *parts.optimizer, step, *parts.model, shards[i],
                    absl::MakeSpan(session_.optimizer_state[i])),
        session_, -1));
    parts.strategy->PublishShard(static_cast<int>(i));
  }
  parts.strategy->PublishParameters();
  return absl::OkStatus();
}

// Bookkeeping of a step that all ranks completed.
absl::Status TrainStep::Conclude(const StepSums& sums, const IssuedStep& step,
                                 bool late) {
  TrainState& state = session_.state;
  const StepOutcome outcome = OutcomeOf(sums, Rule());
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
    CAPSTAN_RETURN_IF_ERROR(non_finite_.Explain(sums, step, late));
  }
  session_.scaler.Update(outcome.finite);
  CAPSTAN_RETURN_IF_ERROR(divergence_.AfterStep(outcome.finite, at_minimum));
  state.tokens += static_cast<int64_t>(sums.tokens);
  if (state.trained_tokens >= 0) {
    state.trained_tokens += static_cast<int64_t>(sums.trained);
    state.padding += static_cast<int64_t>(sums.padding);
  }
  if (sums.count > 0) state.last_loss = sums.loss_sum / sums.count;
  records_.Record(sums, outcome, step, JudgeLoss(sums, outcome));
  return absl::OkStatus();
}

// Returns the score of a loss that is a spike, and takes others into the
// window.
absl::optional<double> TrainStep::JudgeLoss(const StepSums& sums,
                                            const StepOutcome& outcome) {
  absl::optional<double> score;
  if (!spikes_.enabled() || !outcome.finite || sums.count == 0) return score;
  TrainState& state = session_.state;
  const LossSpikes& config = session_.config.train().loss_spikes();
  const double loss = sums.loss_sum / sums.count;
  if (outcome.spike) {
    score = spikes_.Score(state, loss);
    session_.Note(SpikeText(config, state, loss, *score));
    go_back_ = config.action() == LossSpikes::GO_BACK;
  }
  if (spikes_.Take(loss, outcome.spike, &state)) {
    go_back_ = false;
    session_.Note(absl::StrCat(
        "step ", state.step,
        ": as many losses in a row were as high: this is the new level, by "
        "which further losses are judged"));
  }
  return score;
}

// ---- A step's batches.

// What was passed over to read this rank's micro-batches.
std::vector<BadSample> TrainStep::BadSamplesOfStep() const {
  const ForgivingReader* const reader = session_.forgiving_train.get();
  if (reader == nullptr || !reader->any()) return {};
  const BatchPlan& plan = session_.job.batch;
  SampleSequence sequence(order_);
  std::vector<int64_t> samples(plan.accumulation * plan.micro_batch_size);
  for (int64_t i = 0; i < plan.accumulation; ++i) {
    sequence.At(session_.state.samples + MicroBatchIndex(plan.order,
                                                         session_.group->rank(),
                                                         session_.group->size(),
                                                         i, plan.accumulation) *
                                             plan.micro_batch_size,
                absl::MakeSpan(samples).subspan(i * plan.micro_batch_size,
                                                plan.micro_batch_size));
  }
  return reader->BadAmong(samples);
}

// Sums Objective::StepTotals over all ranks' micro-batches of the step, which
// it prefetches for that.
absl::Status TrainStep::SumTotals(DataLoader& loader) {
  const Objective& objective = *session_.parts.objective;
  batches_.clear();
  if (objective.step_totals() == 0) return absl::OkStatus();
  std::vector<ExactSum> sums(objective.step_totals());
  std::deque<Batch> batches;
  const absl::Status status = CatchAll([&]() -> absl::Status {
    for (int64_t i = 0; i < session_.job.batch.accumulation; ++i) {
      CAPSTAN_ASSIGN_OR_RETURN(Batch batch, NextBatch(loader));
      AddStepTotals(objective, batch, info_, absl::MakeSpan(sums));
      batches.push_back(std::move(batch));
    }
    return absl::OkStatus();
  });
  // Even after an error: the other ranks wait here.
  if (exact_.has_value()) AllReduce(*session_.group, absl::MakeSpan(sums));
  info_.totals.clear();
  for (const ExactSum& sum : sums) info_.totals.push_back(sum.Value());
  if (!exact_.has_value()) {
    session_.group->AllReduceHost(absl::MakeSpan(info_.totals));
  }
  batches_ = std::move(batches);
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
    : session_(*session),
      spikes_(session->config.train().loss_spikes()),
      divergence_(*divergence),
      records_(*records),
      non_finite_(
          session, divergence, &order_,
          [this](int64_t step, const ReadOneBatch& read, bool* completed) {
            return Backpropagate(step, read, completed);
          }) {
  info_.seed = session->config.train().seed();
  info_.training = true;
}

absl::Status TrainStep::SetUp(ReadSums read, Profiler* profiler,
                              DataOrder order) {
  profiler_ = profiler;
  order_ = std::move(order);
  const at::Device device = session_.group->device();
  if (read == ReadSums::kDeferred ||
      (read == ReadSums::kAuto && device.is_cuda() &&
       // A graph's scale comes from the host.
       !(session_.scaler.enabled() && session_.config.train().cuda_graphs()))) {
    deferred_ = std::make_unique<DeferredSums>(
        device, device.is_cuda() ? session_.group->size() : 0,
        static_cast<int>(session_.parts.objective->metrics().size()));
  }
  if (deferred_ == nullptr &&
      SumsAlongTree(session_.config.train(), session_.parts)) {
    exact_.emplace();
  }
  // Averages a few samples, since a single one may have no targets.
  const DatasetReader& data = session_.train_reader();
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
  if (session_.config.train().cuda_graphs() && device.is_cuda()) SetUpGraphs();
  return absl::OkStatus();
}

void TrainStep::SetUpGraphs() {
  const GpuTools& tools = *TheGpuTools();
  MicroStepGraphs::Parts parts;
  parts.strategy = session_.parts.strategy.get();
  parts.gradients = dynamic_cast<HeldGradients*>(parts.strategy);
  parts.runner = &session_.runner;
  parts.device = session_.group->device();
  parts.forward = [this](const Batch& batch, UnitRunner& runner) {
    return Forward(batch, runner);
  };
  parts.backward = [this](const at::Tensor& loss_sum, const at::Tensor& scale) {
    Backward(loss_sum, scale);
  };
  parts.scale = [this] { return HostScale(); };
  parts.new_graph = tools.new_graph;
  parts.idle_memory = tools.idle_graph_memory;
  parts.note = [this](const std::string& line) { session_.Note(line); };
  SetWorkIsRepeated(true);
  graphs_ = std::make_unique<MicroStepGraphs>(std::move(parts));
}

absl::Status TrainStep::Try(const std::vector<int64_t>& samples,
                            bool* completed) {
  return Backpropagate(
      session_.state.step + 1,
      [&]() -> absl::StatusOr<Batch> {
        CAPSTAN_ASSIGN_OR_RETURN(Batch batch,
                                 ReadBatch(session_.train_reader(), samples,
                                           session_.group->device()));
        info_.totals = session_.parts.objective->StepTotals(batch, info_);
        return batch;
      },
      completed);
}

// A step of a single micro-batch, up to complete gradients.
absl::Status TrainStep::Backpropagate(int64_t step, const ReadOneBatch& read,
                                      bool* completed) {
  const RunParts& parts = session_.parts;
  *completed = false;
  absl::Status status = CatchAll([&]() -> absl::Status {
    parts.strategy->BeginStep(step);
    parts.strategy->BeginMicroStep(0, 1);
    CAPSTAN_ASSIGN_OR_RETURN(const Batch batch, read());
    const at::Tensor sum = Forward(batch, session_.runner).sum;
    Backward(sum, BackwardScale(sum));
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
