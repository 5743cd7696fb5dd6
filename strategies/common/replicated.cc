// SPDX-License-Identifier: Apache-2.0
#include "strategies/common/replicated.h"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "base/status.h"
#include "strategies/common/flat_state.h"
#include "strategies/common/grid_sums.h"

namespace capstan {

absl::Status ReplicatedStrategy::SetUp(const StrategyContext& context,
                                       int64_t first, int64_t cap,
                                       GradientBuckets::OnReady on_ready) {
  context_ = context;
  const std::vector<ParameterSpec>& specs = context.model->parameters();
  rules_ = RulesOf(*context.model, context.optimizer);
  layout_ =
      LayOut(specs, BackwardOrder(specs, /*trainable=*/true), rules_.multiple);
  parameters_.resize(specs.size());
  CAPSTAN_RETURN_IF_ERROR(MakeShard(context, layout_.ranges, layout_.numel,
                                    context.group->device(),
                                    /*on_all_ranks=*/true, &shard_));
  CAPSTAN_RETURN_IF_ERROR(frozen_.Make(context, &parameters_));
  MakeParameters(*context.model, layout_,
                 shard_.working.defined() ? shard_.working : shard_.master,
                 &parameters_);
  context.model->Bind(parameters_);
  GradientBuckets::Options options;
  options.dtype = context.precision.reduce;
  options.flat = shard_.gradient;
  if (context.deterministic) {
    grid_sums_ = Zeros(MemoryCategory::kGradients, layout_.numel,
                       context.group->device(), at::kDouble);
    options.on_ready = [this, on_ready = std::move(on_ready)](int bucket) {
      const at::Tensor gradients = gradients_->Take(bucket);
      const at::Tensor sums = GridSums(bucket);
      PutOnGrid(gradients, /*add=*/micro_step_ > 0, sums);
      if (micro_step_ + 1 < micro_steps_) return;
      if (!takes_sums_) gradients.copy_(sums);
      if (on_ready) on_ready(bucket);
    };
  } else {
    options.on_ready = std::move(on_ready);
  }
  options.model = context.model;
  const int64_t bytes = shard_.gradient.element_size();
  gradients_ = std::make_unique<GradientBuckets>(
      specs, layout_, CutBuckets(layout_, first / bytes, cap / bytes),
      parameters_, std::move(options));
  return absl::OkStatus();
}

absl::Span<OptimizerShard> ReplicatedStrategy::OptimizerShards() {
  return absl::MakeSpan(&shard_, 1);
}

void ReplicatedStrategy::BeginMicroStep(int index, int count) {
  // Then each micro-step's gradients are apart from the others'.
  const bool apart = grid_sums_.defined();
  // Buckets left incomplete by the previous micro-step.
  if (apart && index > 0) gradients_->Finish();
  micro_step_ = index;
  micro_steps_ = count;
  gradients_->Begin(/*first=*/apart || index == 0,
                    /*last=*/apart || index + 1 == count);
}

void ReplicatedStrategy::FinishBackward() {
  gradients_->Finish();
  // After an error in one micro-step, others may wait for the last one's sums.
  while (grid_sums_.defined() && micro_step_ + 1 < micro_steps_) {
    BeginMicroStep(micro_step_ + 1, micro_steps_);
    gradients_->Finish();
  }
  Reduce();
  const at::NoGradGuard no_grad;
  if (takes_sums_ && grid_sums_.defined()) shard_.gradient.copy_(grid_sums_);
}

at::Tensor ReplicatedStrategy::GridSums(int bucket) const {
  const Bucket& whole = gradients_->buckets()[bucket];
  return grid_sums_.narrow(0, whole.begin, whole.numel());
}

at::Tensor ReplicatedStrategy::TakeSums(int bucket) {
  takes_sums_ = true;
  return grid_sums_.defined() ? GridSums(bucket) : gradients_->Take(bucket);
}

std::pair<int64_t, int64_t> ReplicatedStrategy::Share() const {
  return RankSlice(layout_.numel, context_.group->rank(),
                   context_.group->size(), rules_.multiple);
}

at::Tensor ReplicatedStrategy::GradientSquaredSum() {
  if (local_steps()) {
    return SquaredSum(shard_.gradient, 0, shard_.gradient.numel());
  }
  const auto [begin, end] = Share();
  return SquaredSum(shard_.gradient, begin, end);
}

std::vector<OwnedSlice> ReplicatedStrategy::OwnedSlices() const {
  const auto [begin, end] = Share();
  return {{0, begin, end}};
}

absl::Status ReplicatedStrategy::ForEachFullParameter(
    const std::function<absl::Status(int, const at::Tensor&)>& fn) {
  const std::vector<ParameterSpec>& specs = context_.model->parameters();
  std::vector<ParameterPlace> places(specs.size());
  SetPlaces(layout_, 0, &places);
  SetPlaces(frozen_.layout, 1, &places);
  return ForEachPlacedParameter(
      *context_.model, places, context_.group->rank(),
      [&](int buffer) { return buffer == 0 ? SharedMaster(0) : frozen_.flat; },
      fn);
}

StrategyPlan ReplicatedStrategy::Plan(const StrategyRequest& request) const {
  const PrecisionPolicy& precision = request.precision;
  const std::vector<ParameterSpec> specs =
      StoredSpecs(*request.model, precision.compute);
  const LayoutRules rules = RulesOf(*request.model, request.optimizer);
  const int64_t trainable =
      LayOut(specs, BackwardOrder(specs, true), rules.multiple).numel;
  const int64_t frozen = LayOut(specs, BackwardOrder(specs, false)).numel;
  const int64_t compute_bytes = c10::elementSize(precision.compute);
  const size_t units = request.model->units().size();
  StrategyPlan plan;
  plan.parameters = (trainable + frozen) * compute_bytes;
  plan.gradients = trainable * c10::elementSize(precision.reduce);
  int64_t sums = plan.gradients;
  if (request.deterministic) {
    sums = trainable * kGridSumBytes;
    plan.gradients += sums;
  }
  if (precision.compute != precision.master) {
    plan.masters = trainable * c10::elementSize(precision.master);
  }
  plan.optimizer_elements = trainable;
  plan.forward_buckets.resize(units);
  plan.backward_buckets.resize(units);
  plan.backward_workspace = LargestGradients(*request.model, precision.compute);
  plan.sent_for_gradients =
      2 * sums * (request.world_size - 1) / request.world_size;
  return plan;
}

}  // namespace capstan
