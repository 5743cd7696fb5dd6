// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/micro_steps.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <stdexcept>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/exact_sum.h"
#include "base/lost_peer.h"
#include "base/profile.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "cluster/comm/gpu_tools.h"
#include "cluster/comm/phase_group.h"
#include "host/plugins/plugin_host.h"
#include "kernels/context/gradient_grid.h"
#include "kernels/context/work_recorder.h"
#include "plugins/sdk/held_gradients.h"
#include "plugins/sdk/memory.h"
#include "trainer/profile/profiler.h"
#include "trainer/profile/ranges.h"
#include "trainer/session/evaluate.h"
#include "trainer/session/outside_units.h"
#include "trainer/session/receipts.h"
#include "trainer/session/step_witness.h"
#include "trainer/session/whose_code.h"

namespace capstan {

namespace {

[[noreturn]] void FailOnLoss(const std::string& what) {
  throw std::logic_error(
      absl::StrCat("returned a LossSum ", what, " (plugins/sdk/objective.h)"));
}

// Throws if the sums over micro-batches can't use it.
void CheckLoss(const LossSum& loss, const Session& session) {
  if (!loss.sum.defined()) FailOnLoss("without a sum");
  if (loss.sum.numel() != 1) {
    FailOnLoss(absl::StrCat("whose sum has ", loss.sum.numel(),
                            " elements: it must be a scalar"));
  }
  if (!loss.metrics.defined()) return;
  const auto metrics =
      static_cast<int64_t>(session.parts.objective->metrics().size());
  if (loss.metrics.numel() != 2 * metrics) {
    FailOnLoss(absl::StrCat("whose metrics have ", loss.metrics.numel(),
                            " elements: metrics() names ", metrics,
                            ", of two numbers each"));
  }
}

bool Weightless(const StepInFlight& step, int64_t index) {
  return !step.weightless.empty() && step.weightless[index];
}

}  // namespace

MicroSteps::MicroSteps(Session* session)
    : session_(*session), metric_sums_(StepMetricTags(session->parts)) {
  info_.seed = session->config.train().seed();
  info_.training = true;
}

absl::Status MicroSteps::SetUp(const DeferredSums* deferred,
                               bool sums_exactly) {
  deferred_ = deferred;
  sums_exactly_ = sums_exactly;
  const DatasetReader& data = session_.train_reader();
  if (session_.parts.objective->has_rollouts()) {
    // What is trained on isn't there yet.
    nominal_targets_ =
        static_cast<double>(std::max<int64_t>(1, data.max_sequence_length()) *
                            session_.job.batch.global_batch_size);
    return absl::OkStatus();
  }
  // Averages a few samples, since a single one may have no targets.
  const int64_t samples = std::min<int64_t>(8, data.size());
  int64_t targets = 0;
  for (int64_t i = 0; i < samples; ++i) {
    const WhoseCode reading(session_.plugins.train_data, "Read");
    CAPSTAN_ASSIGN_OR_RETURN(const Batch batch, ReadBatch(data, {i}, at::kCPU));
    const WhoseCode code(session_.plugins.objective, "CountTargets");
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
  if (session_.config.train().cuda_graphs() &&
      session_.group->device().is_cuda())
    SetUpGraphs();
  return absl::OkStatus();
}

absl::Status MicroSteps::Run(DataLoader& loader, int index,
                             StepInFlight* step) {
  const Range range("micro-step", index);
  // First: if anything below fails, FinishBackward still knows the step.
  {
    const WhoseCode code(session_.plugins.strategy, "BeginMicroStep");
    if (index == 0) {
      SetGrid();
      session_.parts.strategy->BeginStep(step->number);
    }
    session_.parts.strategy->BeginMicroStep(
        index, static_cast<int>(session_.job.batch.accumulation));
  }
  if (index == 0) CAPSTAN_RETURN_IF_ERROR(SumTotals(loader, step));
  CAPSTAN_ASSIGN_OR_RETURN(const Batch batch, NextBatch(loader, step));
  weight_ = Weightless(*step, index) ? 0.0 : 1.0;
  if (session_.config.train().receipts() && session_.counts() &&
      weight_ != 0.0) {
    step->digest.rows += DigestOfRows(batch);
  }
  const LossSum loss = ForwardBackward(batch);
  at::Tensor sum = loss.sum.to(at::kDouble);
  // Of ranks that share rows, each has a whole sum.
  const bool repeats =
      !session_.counts() && session_.parts.objective->has_whole_sums();
  if (weight_ == 0.0 || repeats) sum = at::zeros_like(sum);
  step->loss_sum = step->loss_sum.defined() ? step->loss_sum + sum : sum;
  step->losses.push_back(sum);
  if (loss.metrics.defined()) {
    metric_sums_.Add(
        weight_ == 0.0 ? at::zeros_like(loss.metrics) : loss.metrics,
        &step->metrics);
  }
  if (!session_.counts() || weight_ == 0.0) return absl::OkStatus();
  StepSums& mine = step->sums;
  mine.count += static_cast<double>(loss.count);
  mine.tokens += static_cast<double>(loss.tokens);
  mine.trained +=
      static_cast<double>(loss.trained < 0 ? loss.count : loss.trained);
  mine.padding += static_cast<double>(loss.padding);
  return absl::OkStatus();
}

LossSum MicroSteps::Forward(const Batch& batch, UnitRunner& runner) {
  const ProfileScope profile(session_.phase = kForwardPhase);
  const MemoryScope scope(MemoryCategory::kActivations);
  const auto compute = [&] {
    const WhoseCode code(session_.plugins.objective, "Compute");
    LossSum loss = session_.parts.objective->Compute(*session_.parts.model,
                                                     batch, info_, runner);
    CheckLoss(loss, session_);
    return loss;
  };
  if (std::exchange(looked_outside_, true)) return compute();
  const OutsideUnits outside(session_.parts.model->parameters());
  try {
    LossSum loss = compute();
    if (outside.found().empty()) return loss;
  } catch (...) {
    // What a sharding strategy has freed is the consequence.
    if (outside.found().empty()) throw;
  }
  throw std::logic_error(absl::StrCat(
      session_.plugins.model, " uses its parameter ", outside.found(),
      " outside of UnitRunner::Run, where a strategy that shards doesn't hold "
      "it: all work of a unit must be done inside Run "
      "(plugins/sdk/unit_runner.h)"));
}

// That of the mean loss's gradient, times what that is scaled by: by the loss
// scale and, of ranks that share rows, by their part of it.
void MicroSteps::SetGrid() const {
  SetGradientGrid(kGradientGridBits - std::ilogb(session_.scaler.scale()) +
                  std::ilogb(session_.mesh().sequence));
}

double MicroSteps::HostScale() const {
  return weight_ * session_.scaler.scale() / nominal_targets_;
}

void MicroSteps::Backward(const at::Tensor& loss_sum, const at::Tensor& scale) {
  const ProfileScope profile(session_.phase = kBackwardPhase);
  const MemoryScope scope(MemoryCategory::kWorkspace);
  // Not in Forward, which a repeated micro-step runs without the model's work.
  if (!loss_sum.requires_grad()) {
    const WhoseCode code(session_.plugins.objective, "Compute");
    FailOnLoss("whose sum has no gradient");
  }
  const WhoseCode code(session_.plugins.model, "backward");
  torch::autograd::backward({loss_sum}, {scale});
}

// Of the loss's type. While the last step's sums are still on the device, so is
// the loss scale that follows from them.
at::Tensor MicroSteps::BackwardScale(const at::Tensor& loss_sum) const {
  if (weight_ != 0.0 && deferred_ != nullptr && deferred_->pending() &&
      deferred_->next_loss_scale().defined()) {
    const at::Tensor& scale = deferred_->next_loss_scale();
    return (scale / at::full({}, nominal_targets_, scale.options()))
        .to(loss_sum.scalar_type());
  }
  return at::full({}, HostScale(), loss_sum.options());
}

LossSum MicroSteps::ForwardBackward(const Batch& batch) {
  if (graphs_ != nullptr) return graphs_->Run(batch, info_.totals);
  LossSum loss = Forward(batch, session_.runner);
  Backward(loss.sum, BackwardScale(loss.sum));
  loss.sum = loss.sum.detach();
  return loss;
}

bool MicroSteps::AddMemory(GpuMemory* memory) const {
  if (graphs_ == nullptr) return false;
  graphs_->AddMemory(memory);
  return true;
}

// Sums Objective::StepTotals over all ranks' micro-batches of the step, which
// it prefetches for that.
absl::Status MicroSteps::SumTotals(DataLoader& loader, StepInFlight* step) {
  const Objective& objective = *session_.parts.objective;
  if (objective.step_totals() == 0) return absl::OkStatus();
  std::vector<ExactSum> sums(objective.step_totals());
  std::deque<Batch> batches;
  const absl::Status status = CatchAll([&]() -> absl::Status {
    for (int64_t i = 0; i < session_.job.batch.accumulation; ++i) {
      CAPSTAN_ASSIGN_OR_RETURN(Batch batch, NextBatch(loader, step));
      if (session_.counts() && !Weightless(*step, i)) {
        AddStepTotals(objective, batch, info_, absl::MakeSpan(sums));
      }
      batches.push_back(std::move(batch));
    }
    return absl::OkStatus();
  });
  // Even after an error: the other ranks wait here.
  if (sums_exactly_) AllReduce(*session_.group, absl::MakeSpan(sums));
  info_.totals.clear();
  for (const ExactSum& sum : sums) info_.totals.push_back(sum.Value());
  if (!sums_exactly_) {
    session_.group->AllReduceHost(absl::MakeSpan(info_.totals));
  }
  step->ahead = std::move(batches);
  return status;
}

absl::StatusOr<Batch> MicroSteps::NextBatch(DataLoader& loader,
                                            StepInFlight* step) {
  const ProfileScope profile(session_.phase = kDataPhase);
  if (step->ahead.empty()) {
    CAPSTAN_ASSIGN_OR_RETURN(Batch next, loader.Next());
    if (StepWitness::Wanted(session_)) step->read.push_back(next);
    return next;
  }
  Batch next = std::move(step->ahead.front());
  step->ahead.pop_front();
  return next;
}

void MicroSteps::SetUpGraphs() {
  const GpuTools& tools = *TheGpuTools();
  MicroStepGraphs::Parts parts;
  parts.strategy = session_.parts.strategy.get();
  parts.gradients = parts.strategy->held_gradients();
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
  if (session_.config.train().check_cuda_graphs()) parts.compared_of = 1.0;
  SetWorkIsRepeated(true);
  graphs_ = std::make_unique<MicroStepGraphs>(std::move(parts));
}

absl::Status MicroSteps::Try(const std::vector<int64_t>& samples,
                             bool* completed) {
  return Backpropagate(
      session_.state.step + 1,
      [&]() -> absl::StatusOr<Batch> {
        const WhoseCode code(session_.plugins.train_data, "Read");
        CAPSTAN_ASSIGN_OR_RETURN(Batch batch,
                                 ReadBatch(session_.train_reader(), samples,
                                           session_.group->device()));
        info_.totals = session_.parts.objective->StepTotals(batch, info_);
        return batch;
      },
      completed);
}

// A step of a single micro-batch, up to complete gradients.
absl::Status MicroSteps::Backpropagate(int64_t step, const ReadOneBatch& read,
                                       bool* completed) {
  const RunParts& parts = session_.parts;
  weight_ = 1.0;
  *completed = false;
  SetGrid();
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
