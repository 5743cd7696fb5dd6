// SPDX-License-Identifier: Apache-2.0
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "myvendor/myplugin/myplugin.pb.h"
#include "plugins/sdk/plugin.h"
#include "plugins/sdk/strategy.h"
#include "strategies/common/flat_state.h"
#include "strategies/common/gradient_buckets.h"
#include "strategies/common/replicated_state.h"
#include "strategies/common/squared_sum.h"

namespace myvendor {
namespace myplugin {

// Data parallelism at its simplest: the whole model on each rank, and one
// all-reduce of all gradients after backward. What a strategy has to keep is
// said in plugins/sdk/strategy.h; strategies/common has the parts of it that
// most of them share.
class MyPlugin final : public capstan::Strategy {
 public:
  static absl::StatusOr<std::unique_ptr<MyPlugin>> Create(const Config&) {
    return std::make_unique<MyPlugin>();
  }

  absl::Status Check(const capstan::StrategyRequest& request) const override {
    return capstan::CheckPrecision(request.precision);
  }

  capstan::StrategyPlan Plan(
      const capstan::StrategyRequest& request) const override {
    return capstan::ReplicatedState::Plan(request);
  }

  absl::Status Setup(const capstan::StrategyContext& context) override {
    group_ = context.group;
    CAPSTAN_RETURN_IF_ERROR(state_.Setup(context));
    const capstan::FlatLayout& layout = state_.layout();
    capstan::GradientBuckets::Options options;
    options.dtype = context.precision.reduce;
    options.flat = state_.shard().gradient;
    options.model = context.model;
    // One bucket for all of it.
    gradients_ = std::make_unique<capstan::GradientBuckets>(
        context.model->parameters(), layout,
        capstan::CutBuckets(layout, layout.numel, layout.numel),
        state_.parameters(), std::move(options));
    return absl::OkStatus();
  }

  absl::Span<capstan::OptimizerShard> OptimizerShards() override {
    return absl::MakeSpan(&state_.shard(), 1);
  }

  void BeginMicroStep(int index, int count) override {
    gradients_->Begin(/*first=*/index == 0, /*last=*/index + 1 == count);
  }

  void FinishBackward() override {
    if (gradients_->buckets().empty()) return;  // nothing is trainable
    group_->AllReduce(gradients_->Take(0))->Wait();
  }

  // All ranks hold the same sums: each takes its share of the work.
  at::Tensor GradientSquaredSum() override {
    const auto [begin, end] = MyShare();
    return capstan::SquaredSum(state_.shard().gradient, begin, end);
  }

  // All ranks make the same update of the same sums.
  void PublishParameters() override {}

  std::vector<capstan::OwnedSlice> OwnedSlices() const override {
    const auto [begin, end] = MyShare();
    return {{0, begin, end}};
  }

  absl::Status ForEachFullParameter(
      const std::function<absl::Status(int, const at::Tensor&)>& fn) override {
    return state_.ForEachFullParameter(fn);
  }

 private:
  std::pair<int64_t, int64_t> MyShare() const {
    return capstan::RankSlice(state_.layout().numel, group_->rank(),
                              group_->size());
  }

  capstan::ProcessGroup* group_ = nullptr;
  capstan::ReplicatedState state_;
  std::unique_ptr<capstan::GradientBuckets> gradients_;
};

CAPSTAN_PLUGIN(Strategy, MyPlugin, myvendor::myplugin::Config,
               "data parallel: one all-reduce after backward");

}  // namespace myplugin
}  // namespace myvendor
