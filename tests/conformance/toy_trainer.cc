// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/toy_trainer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "trainer/checkpoint/save.h"
#include "trainer/optimizer/optimizer_state.h"

namespace capstan {
namespace conformance {
namespace {

StrategyRequest RequestFor(const ToyModel& model, const ToyRun& run, int world,
                           const Optimizer& optimizer) {
  StrategyRequest request;
  request.model = &model;
  request.precision = run.precision;
  request.world_size = world;
  request.accumulation = run.accumulation;
  request.optimizer = &optimizer;
  request.deterministic = run.deterministic;
  return request;
}

const StepFault* FaultOf(const std::vector<StepFault>& faults, int rank,
                         int micro_step) {
  for (const StepFault& fault : faults) {
    if (fault.rank == rank && fault.micro_step == micro_step) return &fault;
  }
  return nullptr;
}

}  // namespace

absl::Status ToyTrainer::Check(const LoadedPluginUnderTest& plugin,
                               const ToyRun& run, int world) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<Strategy> strategy,
                           plugin.Create<Strategy>());
  const ToyModel model;
  const ToyOptimizer optimizer(run.matrices);
  return strategy->Check(RequestFor(model, run, world, optimizer));
}

absl::StatusOr<StrategyPlan> ToyTrainer::Plan(
    const LoadedPluginUnderTest& plugin, const ToyRun& run, int world) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<Strategy> strategy,
                           plugin.Create<Strategy>());
  const ToyModel model;
  const ToyOptimizer optimizer(run.matrices);
  return strategy->Plan(RequestFor(model, run, world, optimizer));
}

absl::StatusOr<std::unique_ptr<ToyTrainer>> ToyTrainer::Create(
    const LoadedPluginUnderTest& plugin, const ToyRun& run,
    ProcessGroup* group) {
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<Strategy> strategy,
                           plugin.Create<Strategy>());
  std::unique_ptr<ToyTrainer> trainer(
      new ToyTrainer(run, group, std::move(strategy)));
  CAPSTAN_RETURN_IF_ERROR(trainer->SetUp());
  return trainer;
}

ToyTrainer::ToyTrainer(const ToyRun& run, ProcessGroup* group,
                       std::unique_ptr<Strategy> strategy)
    : run_(run),
      group_(group),
      strategy_(std::move(strategy)),
      runner_(strategy_.get(), {run.recompute_every, kToyUnits}),
      optimizer_(run.matrices),
      scaler_(run.precision.loss_scaling) {}

absl::Status ToyTrainer::SetUp() {
  CAPSTAN_RETURN_IF_ERROR(
      strategy_->Check(RequestFor(model_, run_, group_->size(), optimizer_)));
  StrategyContext context;
  context.model = &model_;
  context.group = group_;
  context.precision = run_.precision;
  context.seed = kToySeed;
  context.optimizer = &optimizer_;
  context.deterministic = run_.deterministic;
  CAPSTAN_RETURN_IF_ERROR(strategy_->Setup(context));
  CAPSTAN_RETURN_IF_ERROR(SetUpOptimizer(
      optimizer_, model_, strategy_->OptimizerShards(), &optimizer_state_));
  for (size_t i = 0; i < strategy_->OptimizerShards().size(); ++i) {
    strategy_->PublishShard(static_cast<int>(i));
  }
  strategy_->PublishParameters(PublishCause::kInitial);
  return absl::OkStatus();
}

absl::StatusOr<StepOutcome> ToyTrainer::Step(
    const std::vector<StepFault>& faults) {
  Verdict verdict;
  absl::Status status;
  try {
    strategy_->BeginStep(state_.step + 1);
    for (int i = 0; i < run_.accumulation; ++i) {
      MicroStep(i, faults, &verdict);
    }
  } catch (...) {
    status = CurrentExceptionToStatus();
  }
  if (absl::IsUnavailable(status)) return status;
  try {
    strategy_->FinishBackward();
    verdict.squared_sum = strategy_->GradientSquaredSum().item<double>();
  } catch (...) {
    status.Update(CurrentExceptionToStatus());
  }
  verdict.failed_ranks = status.ok() ? 0.0 : 1.0;
  const absl::optional<Verdict> own = OwnVerdict(&verdict);
  // A fault that the test didn't request.
  if (!status.ok() && faults.empty()) return status;
  try {
    double sums[] = {verdict.loss_sum, verdict.count, verdict.squared_sum,
                     verdict.failed_ranks};
    group_->AllReduceHost(absl::MakeSpan(sums));
    const StepOutcome outcome = Act({sums[0], sums[1], sums[2], sums[3]}, own);
    if (outcome.failed_ranks == 0) strategy_->EndStep(state_.step);
    return outcome;
  } catch (...) {
    return CurrentExceptionToStatus();
  }
}

void ToyTrainer::MicroStep(int index, const std::vector<StepFault>& faults,
                           Verdict* mine) {
  strategy_->BeginMicroStep(index, run_.accumulation);
  const StepFault* fault = FaultOf(faults, group_->rank(), index);
  if (fault != nullptr && fault->out_of_data) {
    throw std::runtime_error("the test's end of data");
  }
  const int64_t micro = kToyGlobalBatch / run_.accumulation / group_->size();
  const ToyBatch batch =
      ToySamples(state_.step * kToyGlobalBatch +
                     (index * group_->size() + group_->rank()) * micro,
                 micro);
  const at::Tensor loss = model_.LossSum(
      batch, runner_, fault == nullptr ? ToyFault::kNone : fault->fault);
  torch::autograd::backward(
      {loss},
      {at::full({}, scaler_.scale() / kToyNominalTargets, loss.options())});
  mine->loss_sum += loss.item<double>();
  mine->count += static_cast<double>(batch.count);
}

double ToyTrainer::Unscale(const Verdict& verdict) const {
  return kToyNominalTargets / std::max(verdict.count, 1.0) / scaler_.scale();
}

// With local_steps() each replica's gradients are normalised and clipped by its
// own numbers, which are returned; the norm that all see is the root of the
// mean of the squares.
absl::optional<ToyTrainer::Verdict> ToyTrainer::OwnVerdict(
    Verdict* mine) const {
  if (!strategy_->local_steps()) return absl::nullopt;
  Verdict own = *mine;
  if (ProcessGroup* const ranks = strategy_->replica_group()) {
    double sums[] = {own.loss_sum, own.count, own.squared_sum};
    ranks->AllReduceHost(absl::MakeSpan(sums));
    own.loss_sum = sums[0];
    own.count = sums[1];
    own.squared_sum = sums[2];
  }
  const double unscale = Unscale(own);
  mine->squared_sum *= unscale * unscale / group_->size();
  return own;
}

StepOutcome ToyTrainer::Act(const Verdict& verdict,
                            const absl::optional<Verdict>& own) {
  StepOutcome outcome;
  outcome.failed_ranks = verdict.failed_ranks;
  if (verdict.failed_ranks > 0) return outcome;
  const double unscale = Unscale(own.has_value() ? *own : verdict);
  outcome.loss = verdict.loss_sum / std::max(verdict.count, 1.0);
  outcome.norm =
      std::sqrt(verdict.squared_sum) * (own.has_value() ? 1.0 : unscale);
  const double clipped =
      own.has_value() ? std::sqrt(own->squared_sum) * unscale : outcome.norm;
  outcome.applied = std::isfinite(outcome.norm);
  if (outcome.applied) {
    OptimizerStep step;
    step.step = state_.optimizer_steps + 1;
    step.learning_rate = optimizer_.learning_rate();
    step.gradient_scale = unscale * ToyClip(clipped);
    absl::Span<OptimizerShard> shards = strategy_->OptimizerShards();
    for (size_t i = 0; i < shards.size(); ++i) {
      optimizer_.Update(step, model_.parameters(), shards[i],
                        absl::MakeSpan(optimizer_state_[i]));
      strategy_->PublishShard(static_cast<int>(i));
    }
    strategy_->PublishParameters(PublishCause::kUpdated);
    ++state_.optimizer_steps;
  }
  scaler_.Update(outcome.applied);
  ++state_.step;
  return outcome;
}

void ToyTrainer::UseSharedModel(bool use) {
  if (strategy_->local_steps()) strategy_->UseSharedModel(use);
}

double ToyTrainer::Evaluate(ToyFault fault, int batch_of) {
  at::NoGradGuard no_grad;
  UseSharedModel(true);
  const auto finish = [this] {
    strategy_->FinishForward();
    UseSharedModel(false);
  };
  const int64_t rank = batch_of < 0 ? group_->rank() : batch_of;
  const ToyBatch batch =
      ToySamples(kToyEvalBegin + rank * kToyEvalBatch, kToyEvalBatch);
  try {
    const double loss = model_.LossSum(batch, runner_, fault).item<double>();
    finish();
    return loss;
  } catch (const CommunicationError&) {
    throw;
  } catch (const std::exception&) {
    finish();
    throw;
  }
}

CheckpointParts ToyTrainer::Checkpointed() {
  CheckpointParts parts;
  parts.specs = &model_.parameters();
  parts.shards = strategy_->OptimizerShards();
  parts.state = &optimizer_state_;
  parts.state_shapes = StateShapesOf(optimizer_, model_.parameters());
  parts.strategy = strategy_.get();
  parts.owned = strategy_->OwnedSlices();
  parts.group = group_;
  parts.config_text = "name: \"conformance\"\n";
  return parts;
}

absl::Status ToyTrainer::Save(const std::string& output_dir) {
  state_.seed = kToySeed;
  state_.loss_scale = scaler_.scale();
  state_.loss_scale_good_steps = scaler_.good_steps();
  return SaveCheckpoint({output_dir, state_, /*keep=*/1}, Checkpointed());
}

absl::Status ToyTrainer::Load(const std::string& output_dir) {
  CAPSTAN_ASSIGN_OR_RETURN(
      state_, LoadCheckpoint(NewestCheckpoint(output_dir), Checkpointed()));
  scaler_.Restore(state_.loss_scale, state_.loss_scale_good_steps);
  const int shards = static_cast<int>(strategy_->OptimizerShards().size());
  for (int i = 0; i < shards; ++i) strategy_->PublishShard(i);
  strategy_->PublishParameters(PublishCause::kRestored);
  return absl::OkStatus();
}

std::vector<at::Tensor> ToyTrainer::momenta() const {
  std::vector<at::Tensor> momenta;
  for (const std::vector<at::Tensor>& state : optimizer_state_) {
    momenta.push_back(state[0]);
  }
  return momenta;
}

}  // namespace conformance
}  // namespace capstan
