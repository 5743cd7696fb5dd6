// SPDX-License-Identifier: Apache-2.0
#include "strategies/single/single.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "plugins/sdk/plugin.h"
#include "strategies/common/flat_state.h"
#include "strategies/common/squared_sum.h"

namespace capstan {
namespace single {

absl::StatusOr<std::unique_ptr<Single>> Single::Create(const Config&) {
  return std::make_unique<Single>();
}

absl::Status Single::Check(const StrategyRequest& request) const {
  if (request.world_size == 1) return CheckPrecision(request.precision);
  return absl::InvalidArgumentError(absl::StrCat(
      "capstan.single runs on one rank, this run has ", request.world_size,
      ": set launch { processes: 1 } or another strategy, e.g. "
      "capstan.ddp"));
}

StrategyPlan Single::Plan(const StrategyRequest& request) const {
  return ReplicatedState::Plan(request);
}

absl::Status Single::Setup(const StrategyContext& context) {
  CAPSTAN_RETURN_IF_ERROR(state_.Setup(context));
  const FlatLayout& layout = state_.layout();
  GradientBuckets::Options options;
  options.dtype = context.precision.reduce;
  options.flat = state_.shard().gradient;
  options.model = context.model;
  gradients_ = std::make_unique<GradientBuckets>(
      context.model->parameters(), layout,
      CutBuckets(layout, layout.numel, layout.numel), state_.parameters(),
      std::move(options));
  return absl::OkStatus();
}

absl::Span<OptimizerShard> Single::OptimizerShards() {
  return absl::MakeSpan(&state_.shard(), 1);
}

void Single::BeginMicroStep(int index, int count) {
  gradients_->Begin(/*first=*/index == 0, /*last=*/index + 1 == count);
}

void Single::FinishBackward() {
  if (!gradients_->buckets().empty()) gradients_->Take(0);
}

at::Tensor Single::GradientSquaredSum() {
  return SquaredSum(state_.shard().gradient, 0, state_.layout().numel);
}

std::vector<OwnedSlice> Single::OwnedSlices() const {
  return {{0, 0, state_.layout().numel}};
}

absl::Status Single::ForEachFullParameter(
    const std::function<absl::Status(int, const at::Tensor&)>& fn) {
  return state_.ForEachFullParameter(fn);
}

CAPSTAN_PLUGIN(Strategy, Single, capstan::single::Config,
               "one rank, no communication");

}  // namespace single
}  // namespace capstan
