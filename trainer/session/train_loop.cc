// SPDX-License-Identifier: Apache-2.0
//
// The loop and its steps. What comes before is in train_setup.cc and
// train_micro_batch.cc, what comes between in train_evaluate.cc, and what comes
// after in train_finish.cc.
#include "trainer/session/train_loop.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/full.h>
#include <signal.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/profile.h"
#include "trainer/launcher/launcher.h"
#include "trainer/profile/step_profile.h"
#include "trainer/session/evaluation.h"
#include "trainer/session/schedule.h"

namespace capstan {
namespace {

double Now() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

bool Due(int64_t every, int64_t step) { return every > 0 && step % every == 0; }

}  // namespace

TrainLoop::TrainLoop(TrainJob* job, const RankInfo& rank, Verdicts verdicts)
    : job_(job),
      rank_(rank),
      config_(job->loaded.config),
      verdicts_(verdicts),
      parts_(job->parts),
      scaler_(job->parts.policy().loss_scaling),
      runner_(job->parts.strategy.get(),
              CheckpointingOf(job->loaded.config.train(), *job->parts.model)) {
  info_.seed = config_.train().seed();
  info_.training = true;
}

TrainLoop::~TrainLoop() = default;

absl::Status TrainLoop::Run() {
  const absl::Status set_up = SetUp();
  if (absl::IsCancelled(set_up)) return Stopped();
  CAPSTAN_RETURN_IF_ERROR(set_up);
  if (finished_before_) return absl::OkStatus();
  CAPSTAN_RETURN_IF_ERROR(TakeUp());
  const Train& train = config_.train();
  while (GoesOn()) {
    CAPSTAN_RETURN_IF_ERROR(Step());
    const bool evaluate = Due(train.eval_every(), state_.step);
    const bool save = Due(train.save_every(), state_.step);
    if (evaluate || save || stopping_ || state_.step == max_steps_) {
      CAPSTAN_RETURN_IF_ERROR(CatchUp());
    }
    if (evaluate && !stopping_) CAPSTAN_RETURN_IF_ERROR(Evaluate());
    if (evaluate && GoesOn()) {
      CAPSTAN_RETURN_IF_ERROR(
          Generate(absl::StrCat("after step ", state_.step)));
    }
    if (save || stopping_) CAPSTAN_RETURN_IF_ERROR(Save());
  }
  return Finish();
}

bool TrainLoop::GoesOn() const {
  return state_.step < max_steps_ && !OutOfPatience() && !stopping_;
}

absl::Status TrainLoop::TakeUp() {
  // A signal may have come while the run was set up.
  CAPSTAN_RETURN_IF_ERROR(
      StopIfCancelled(AgreeOnStop(*group_, StopStatus(), "start")));
  if (stopping_) return absl::OkStatus();
  if (first_step_ == 0) return Generate("before training");
  if (!Due(config_.train().eval_every(), first_step_) || !GoesOn()) {
    return absl::OkStatus();
  }
  if (state_.eval_step != first_step_) CAPSTAN_RETURN_IF_ERROR(Evaluate());
  double generated[] = {
      reporter_ != nullptr && reporter_->HasGenerations(first_step_) ? 1.0
                                                                     : 0.0};
  group_->AllReduceHost(absl::MakeSpan(generated));
  if (generated[0] > 0 || !GoesOn()) return absl::OkStatus();
  return Generate(absl::StrCat("after step ", first_step_));
}

absl::Status TrainLoop::Step() {
  StepUnderWay step;
  step.start = Now();
  communication_ = group_->stats();
  if (profiler_ != nullptr) {
    profiler_->BeginStep(state_.step + 1, communication_);
  }
  Verdict verdict;
  absl::Status mine = RunMicroSteps(&verdict);
  // A broken connection can carry no verdict, nor can a rank that has left out
  // a collective: its end is what the others get to know.
  if (absl::IsUnavailable(mine) || !collectives_done_) return mine;
  // A disk that is full is told now, not after the last step.
  if (reporter_ != nullptr) mine.Update(reporter_->status());
  verdict.failed_ranks = mine.ok() ? 0.0 : 1.0;
  verdict.stop_requests = StopRequested() != 0 ? 1.0 : 0.0;
  absl::Status agreed = Agree(mine.ok(), &verdict);
  if (!mine.ok()) {
    return Annotate(mine, absl::StrCat("step ", state_.step + 1));
  }
  CAPSTAN_RETURN_IF_ERROR(agreed);

  step.lr = parts_.optimizer->learning_rate() *
            LearningRateMultiplier(config_.schedule(), state_.optimizer_steps,
                                   max_steps_);
  if (late_ != nullptr) {
    Update(step.lr, 1.0);
  } else if (const Judgement now = Judge(verdict, Rule()); !now.skipped) {
    Update(step.lr, now.gradient_scale);
  }
  if (profiler_ != nullptr) profiler_->EndStep(group_->stats());
  ++state_.step;
  state_.samples += job_->batch.global_batch_size;
  step.communication = CommunicationOfStep();
  step.metrics = metric_sums_;
  if (late_ == nullptr) return Conclude(verdict, step);
  under_way_ = step;
  return absl::OkStatus();
}

absl::Status TrainLoop::Agree(bool good, Verdict* verdict) {
  try {
    if (late_ == nullptr) {
      double sums[] = {verdict->loss_sum,     verdict->count,
                       verdict->tokens,       verdict->gradient_squared_sum,
                       verdict->failed_ranks, verdict->stop_requests,
                       verdict->trained,      verdict->padding};
      group_->AllReduceHost(absl::MakeSpan(sums));
      *verdict = {sums[0], sums[1], sums[2], sums[3],
                  sums[4], sums[5], sums[6], sums[7]};
      return Heed(*verdict, state_.step + 1);
    }
    // By now the device has long come past the end of the last step's verdict,
    // and has this step's micro-steps to work on meanwhile.
    CAPSTAN_RETURN_IF_ERROR(CatchUp());
    late_->Issue(*verdict, good ? loss_sum_ : at::Tensor(),
                 good ? squared_sum_ : at::Tensor(), Rule(), *group_);
    return absl::OkStatus();
  } catch (...) {
    return CurrentExceptionToStatus();
  }
}

absl::Status TrainLoop::Heed(const Verdict& verdict, int64_t step) {
  if (verdict.failed_ranks > 0) {
    return absl::UnavailableError(
        absl::StrCat("another rank failed in step ", step));
  }
  if (verdict.stop_requests > 0) {
    stopping_ = true;
    AdoptStop(SIGTERM);
  }
  return absl::OkStatus();
}

absl::Status TrainLoop::CatchUp() {
  if (late_ == nullptr || !late_->issued()) return absl::OkStatus();
  const Verdict verdict = late_->Read();
  CAPSTAN_RETURN_IF_ERROR(Heed(verdict, state_.step));
  return Conclude(verdict, under_way_);
}

absl::Status TrainLoop::RunMicroSteps(Verdict* mine) {
  absl::Status status;
  for (int i = 0; i < job_->batch.accumulation && status.ok(); ++i) {
    try {
      status = MicroStep(i, mine);
    } catch (...) {
      status = CurrentExceptionToStatus();
    }
  }
  if (absl::IsUnavailable(status)) return status;
  if (absl::IsResourceExhausted(status)) {
    status = Annotate(status, absl::StrCat("out of memory; lower "
                                           "batch.micro_batch_size (now ",
                                           job_->batch.micro_batch_size, ")"));
  }
  // Also after an error: the other ranks wait in these collectives.
  collectives_done_ = false;
  try {
    {
      const ProfileScope profile(kBackwardPhase);
      parts_.strategy->FinishBackward();
    }
    collectives_done_ = true;
    const ProfileScope profile(kOptimizerPhase);
    squared_sum_ = parts_.strategy->GradientSquaredSum();
    if (late_ == nullptr) {
      mine->gradient_squared_sum = squared_sum_.item<double>();
      if (status.ok()) mine->loss_sum = loss_sum_.item<double>();
    }
  } catch (...) {
    if (status.ok()) status = CurrentExceptionToStatus();
  }
  return status;
}

absl::Status TrainLoop::MicroStep(int index, Verdict* mine) {
  // First: if anything below fails, FinishBackward still knows the step.
  parts_.strategy->BeginMicroStep(index,
                                  static_cast<int>(job_->batch.accumulation));
  if (index == 0) CAPSTAN_RETURN_IF_ERROR(SumTotals());
  CAPSTAN_ASSIGN_OR_RETURN(const Batch batch, NextBatch());
  const LossSum loss = Forward(batch);
  Backward(loss.sum);
  // Kept on the device: reading it here would wait for the GPU.
  const at::Tensor sum = loss.sum.detach().to(at::kDouble);
  loss_sum_ = index == 0 ? sum : loss_sum_ + sum;
  if (loss.metrics.defined()) {
    metric_sums_ = index == 0 ? loss.metrics : metric_sums_ + loss.metrics;
  }
  mine->count += static_cast<double>(loss.count);
  mine->tokens += static_cast<double>(loss.tokens);
  mine->trained +=
      static_cast<double>(loss.trained < 0 ? loss.count : loss.trained);
  mine->padding += static_cast<double>(loss.padding);
  return absl::OkStatus();
}

absl::Status TrainLoop::SumTotals() {
  batches_.clear();
  if (parts_.objective->step_totals() == 0) return absl::OkStatus();
  std::vector<double> sums(parts_.objective->step_totals(), 0.0);
  std::deque<Batch> batches;
  const auto read = [&]() -> absl::Status {
    for (int64_t i = 0; i < job_->batch.accumulation; ++i) {
      CAPSTAN_ASSIGN_OR_RETURN(Batch batch, NextBatch());
      AddStepTotals(*parts_.objective, batch, info_, &sums);
      batches.push_back(std::move(batch));
    }
    return absl::OkStatus();
  };
  absl::Status status;
  try {
    status = read();
  } catch (...) {
    status = CurrentExceptionToStatus();
  }
  // Also after an error: the other ranks wait here.
  group_->AllReduceHost(absl::MakeSpan(sums));
  batches_ = std::move(batches);
  info_.totals = std::move(sums);
  return status;
}

absl::StatusOr<Batch> TrainLoop::NextBatch() {
  const ProfileScope profile(kDataPhase);
  if (batches_.empty()) return loader_->Next();
  Batch next = std::move(batches_.front());
  batches_.pop_front();
  return next;
}

LossSum TrainLoop::Forward(const Batch& batch) {
  const ProfileScope profile(kForwardPhase);
  const MemoryScope scope(MemoryCategory::kActivations);
  return parts_.objective->Compute(*parts_.model, batch, info_, runner_);
}

void TrainLoop::Backward(const at::Tensor& loss_sum) {
  const ProfileScope profile(kBackwardPhase);
  const MemoryScope scope(MemoryCategory::kWorkspace);
  const at::Tensor scale =
      at::full({}, scaler_.scale() / nominal_targets_, loss_sum.options());
  torch::autograd::backward({loss_sum}, {scale});
}

GradientRule TrainLoop::Rule() const {
  GradientRule rule;
  rule.nominal_targets = nominal_targets_;
  rule.loss_scale = scaler_.scale();
  rule.max_norm = config_.train().max_grad_norm();
  return rule;
}

void TrainLoop::Update(double lr, double gradient_scale) {
  const ProfileScope profile(kOptimizerPhase);
  OptimizerStep step;
  step.step = state_.optimizer_steps + 1;
  step.learning_rate = lr;
  step.gradient_scale = gradient_scale;
  absl::Span<OptimizerShard> shards = parts_.strategy->OptimizerShards();
  for (size_t i = 0; i < shards.size(); ++i) {
    if (late_ != nullptr) {
      // Waits only where a shard is in host memory, offloaded.
      step.device_scale = late_->scale().to(shards[i].master.device());
    }
    parts_.optimizer->Update(step, parts_.model->parameters(), shards[i],
                             absl::MakeSpan(optimizer_state_[i]));
    parts_.strategy->PublishShard(static_cast<int>(i));
  }
  parts_.strategy->PublishParameters();
}

absl::Status TrainLoop::Conclude(const Verdict& verdict,
                                 const StepUnderWay& step) {
  const Judgement judgement = Judge(verdict, Rule());
  if (!judgement.skipped) ++state_.optimizer_steps;
  if (judgement.finite && judgement.skipped && reporter_ != nullptr &&
      !std::exchange(told_no_targets_, true)) {
    reporter_->Note(
        absl::StrCat("step ", state_.step,
                     ": the batch has no targets, so that there is no update; "
                     "other such batches won't be told of"));
  }
  const bool was_at_minimum = scaler_.at_minimum();
  scaler_.Update(judgement.finite);
  skipped_in_a_row_ = judgement.finite ? 0 : skipped_in_a_row_ + 1;
  CAPSTAN_RETURN_IF_ERROR(CheckSkipped(was_at_minimum));
  state_.tokens += static_cast<int64_t>(verdict.tokens);
  if (state_.trained_tokens >= 0) {
    state_.trained_tokens += static_cast<int64_t>(verdict.trained);
    state_.padding += static_cast<int64_t>(verdict.padding);
  }
  if (verdict.count > 0) state_.last_loss = verdict.loss_sum / verdict.count;
  Report(verdict, judgement, step);
  return absl::OkStatus();
}

CommunicationStats TrainLoop::CommunicationOfStep() const {
  CommunicationStats step = group_->stats();
  step.bytes_sent -= communication_.bytes_sent;
  step.busy_seconds -= communication_.busy_seconds;
  step.exposed_seconds -= communication_.exposed_seconds;
  return step;
}

void TrainLoop::Report(const Verdict& verdict, const Judgement& judgement,
                       const StepUnderWay& step) {
  // A step that is concluded late shares its time with the next one's start.
  const double now = Now();
  const double seconds = now - std::max(step.start, concluded_);
  concluded_ = now;
  step_seconds_.push_back(seconds);
  step_tokens_.push_back(verdict.tokens);
  step_communication_.push_back(step.communication);
  const TaggedNumbers tagged = SumMetrics(step.metrics);
  if (reporter_ == nullptr) return;
  StepMetrics metrics;
  metrics.step = state_.step;
  metrics.loss = verdict.count > 0 ? verdict.loss_sum / verdict.count : 0.0;
  metrics.grad_norm = judgement.grad_norm;
  metrics.lr = step.lr;
  metrics.tokens = state_.tokens;
  metrics.trained_tokens = state_.trained_tokens;
  metrics.padding = PaddingShare(verdict.tokens, verdict.padding);
  metrics.step_seconds = seconds;
  metrics.tokens_per_second = verdict.tokens / std::max(seconds, 1e-9);
  const CommunicationStats& communication = step_communication_.back();
  metrics.bytes_sent = communication.bytes_sent;
  if (!group_->device().is_cuda()) {
    metrics.communication_seconds = communication.busy_seconds;
    metrics.exposed_seconds = communication.exposed_seconds;
  }
  metrics.skipped = judgement.skipped;
  if (scaler_.enabled()) metrics.loss_scale = scaler_.scale();
  metrics.tagged = tagged;
  reporter_->Step(metrics);
}

TaggedNumbers TrainLoop::SumMetrics(const at::Tensor& mine) {
  TaggedNumbers numbers;
  if (!mine.defined() ||
      !(Due(LogEvery(), state_.step) || state_.step == max_steps_)) {
    return numbers;
  }
  const at::Tensor host = mine.to(at::kCPU, at::kDouble).contiguous();
  std::vector<double> sums(host.const_data_ptr<double>(),
                           host.const_data_ptr<double>() + host.numel());
  group_->AllReduceHost(absl::MakeSpan(sums));
  const std::vector<MetricTags> tags = parts_.objective->metrics();
  for (size_t i = 0; i < tags.size(); ++i) {
    // 0 of 0: this step has none.
    if (sums[2 * i + 1] == 0) continue;
    numbers.emplace_back(tags[i].train, sums[2 * i] / sums[2 * i + 1]);
  }
  return numbers;
}

}  // namespace capstan
