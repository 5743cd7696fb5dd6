// SPDX-License-Identifier: Apache-2.0
#include "strategies/common/replicated_state.h"

#include <utility>

#include "base/status.h"
#include "strategies/common/flat_state.h"
#include "strategies/common/gradient_buckets.h"

namespace capstan {

absl::Status ReplicatedState::Setup(const StrategyContext& context) {
  context_ = context;
  const std::vector<ParameterSpec>& specs = context.model->parameters();
  const PrecisionPolicy& precision = context.precision;
  const bool mixed = precision.compute != precision.master;
  const auto zeros = [&](MemoryCategory category, int64_t numel,
                         at::ScalarType dtype) {
    return Zeros(category, numel, context.group->device(), dtype);
  };
  layout_ = LayOut(specs, BackwardOrder(specs, /*trainable=*/true));
  frozen_layout_ = LayOut(specs, BackwardOrder(specs, /*trainable=*/false));

  shard_.ranges = layout_.ranges;
  shard_.master =
      zeros(mixed ? MemoryCategory::kMasters : MemoryCategory::kParameters,
            layout_.numel, precision.master);
  shard_.gradient =
      zeros(MemoryCategory::kGradients, layout_.numel, precision.reduce);
  CAPSTAN_RETURN_IF_ERROR(
      FillInitialValues(context, layout_.ranges, shard_.master));
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
      FillInitialValues(context, frozen_layout_.ranges, frozen_));

  parameters_.resize(specs.size());
  MakeParameters(specs, layout_, working, &parameters_);
  MakeParameters(specs, frozen_layout_, frozen_, &parameters_);
  context.model->Bind(parameters_);
  return absl::OkStatus();
}

absl::Status ReplicatedState::ForEachFullParameter(
    const std::function<absl::Status(int, const at::Tensor&)>& fn) const {
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

StrategyPlan ReplicatedState::Plan(const StrategyRequest& request) {
  const std::vector<ParameterSpec>& specs = request.model->parameters();
  const PrecisionPolicy& precision = request.precision;
  const int64_t trainable = LayOut(specs, BackwardOrder(specs, true)).numel;
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
