// SPDX-License-Identifier: Apache-2.0
#include "strategies/common/replicated.h"

#include <utility>

#include "base/status.h"
#include "strategies/common/flat_state.h"

namespace capstan {

absl::Status ReplicatedStrategy::SetUp(const StrategyContext& context,
                                       int64_t first, int64_t cap,
                                       GradientBuckets::OnReady on_ready) {
  context_ = context;
  CAPSTAN_RETURN_IF_ERROR(MakeBuffers());
  GradientBuckets::Options options;
  options.dtype = context.precision.reduce;
  options.flat = shard_.gradient;
  options.on_ready = std::move(on_ready);
  options.model = context.model;
  const int64_t bytes = shard_.gradient.element_size();
  gradients_ = std::make_unique<GradientBuckets>(
      context.model->parameters(), layout_,
      CutBuckets(layout_, first / bytes, cap / bytes), parameters_,
      std::move(options));
  return absl::OkStatus();
}

absl::Status ReplicatedStrategy::MakeBuffers() {
  const std::vector<ParameterSpec>& specs = context_.model->parameters();
  const PrecisionPolicy& precision = context_.precision;
  const bool mixed = precision.compute != precision.master;
  const auto zeros = [&](MemoryCategory category, int64_t numel,
                         at::ScalarType dtype) {
    return Zeros(category, numel, context_.group->device(), dtype);
  };
  rules_ = RulesOf(*context_.model, context_.optimizer);
  layout_ =
      LayOut(specs, BackwardOrder(specs, /*trainable=*/true), rules_.multiple);
  frozen_layout_ = LayOut(specs, BackwardOrder(specs, /*trainable=*/false));

  shard_.ranges = layout_.ranges;
  shard_.master =
      zeros(mixed ? MemoryCategory::kMasters : MemoryCategory::kParameters,
            layout_.numel, precision.master);
  shard_.gradient =
      zeros(MemoryCategory::kGradients, layout_.numel, precision.reduce);
  CAPSTAN_RETURN_IF_ERROR(
      FillInitialValues(context_, layout_.ranges, shard_.master));
  at::Tensor working = shard_.master;
  if (mixed) {
    shard_.working =
        zeros(MemoryCategory::kParameters, layout_.numel, precision.compute);
    shard_.working.copy_(shard_.master);
    working = shard_.working;
  }
  frozen_ = zeros(MemoryCategory::kParameters, frozen_layout_.numel,
                  precision.compute);
  CAPSTAN_RETURN_IF_ERROR(
      FillInitialValues(context_, frozen_layout_.ranges, frozen_));

  parameters_.resize(specs.size());
  MakeParameters(specs, layout_, working, &parameters_);
  MakeParameters(specs, frozen_layout_, frozen_, &parameters_);
  context_.model->Bind(parameters_);
  return absl::OkStatus();
}

absl::Span<OptimizerShard> ReplicatedStrategy::OptimizerShards() {
  return absl::MakeSpan(&shard_, 1);
}

void ReplicatedStrategy::BeginMicroStep(int index, int count) {
  gradients_->Begin(/*first=*/index == 0, /*last=*/index + 1 == count);
}

std::pair<int64_t, int64_t> ReplicatedStrategy::Share() const {
  return RankSlice(layout_.numel, context_.group->rank(),
                   context_.group->size(), rules_.multiple);
}

at::Tensor ReplicatedStrategy::GradientSquaredSum() {
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
  for (const ParameterRange& range : layout_.ranges) {
    places[range.parameter] = {0, range.offset};
  }
  for (const ParameterRange& range : frozen_layout_.ranges) {
    places[range.parameter] = {1, range.offset};
  }
  return ForEachPlacedParameter(
      specs, places, context_.group->rank(),
      [&](int buffer) { return buffer == 0 ? shard_.master : frozen_; }, fn);
}

StrategyPlan ReplicatedStrategy::Plan(const StrategyRequest& request) const {
  const std::vector<ParameterSpec>& specs = request.model->parameters();
  const PrecisionPolicy& precision = request.precision;
  const LayoutRules rules = RulesOf(*request.model, request.optimizer);
  const int64_t trainable =
      LayOut(specs, BackwardOrder(specs, true), rules.multiple).numel;
  const int64_t frozen = LayOut(specs, BackwardOrder(specs, false)).numel;
  const int64_t compute_bytes = c10::elementSize(precision.compute);
  const size_t units = request.model->units().size();
  StrategyPlan plan;
  plan.parameters = (trainable + frozen) * compute_bytes;
  plan.gradients = trainable * c10::elementSize(precision.reduce);
  if (precision.compute != precision.master) {
    plan.masters = trainable * c10::elementSize(precision.master);
  }
  plan.optimizer_elements = trainable;
  plan.forward_buckets.resize(units);
  plan.backward_buckets.resize(units);
  plan.backward_workspace = LargestGradients(*request.model, precision.compute);
  plan.sent_for_gradients =
      2 * plan.gradients * (request.world_size - 1) / request.world_size;
  return plan;
}

}  // namespace capstan
