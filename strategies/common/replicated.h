// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_STRATEGIES_COMMON_REPLICATED_H_
#define CAPSTAN_STRATEGIES_COMMON_REPLICATED_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "plugins/sdk/held_gradients.h"
#include "plugins/sdk/strategy.h"
#include "strategies/common/flat_layout.h"
#include "strategies/common/flat_state.h"
#include "strategies/common/gradient_buckets.h"

namespace capstan {

// The whole model on each rank, in flat buffers: the common part of `single`,
// `ddp` and `diloco`. A plugin calls SetUp in its Setup and says in Reduce how
// the ranks sum their gradients.
class ReplicatedStrategy : public Strategy, public HeldGradients {
 public:
  StrategyPlan Plan(const StrategyRequest& request) const override;
  absl::Span<OptimizerShard> OptimizerShards() override;
  void BeginMicroStep(int index, int count) override;
  // Completes the gradients, then calls Reduce.
  void FinishBackward() final;
  at::Tensor GradientSquaredSum() override;
  void PublishParameters(PublishCause) override {}
  std::vector<OwnedSlice> OwnedSlices() const override;
  absl::Status ForEachFullParameter(
      const std::function<absl::Status(int, const at::Tensor&)>& fn) override;

  HeldGradients* held_gradients() override { return this; }
  void FixGradients() override {}  // they are one buffer
  void HoldReductions() override { gradients_->Hold(); }
  at::Tensor held() override { return shard_.gradient; }
  std::string GradientState() const override { return gradients_->State(); }
  void SetGradientState(const std::string& state) override {
    gradients_->SetState(state);
  }

 protected:
  // Allocates masters, working copies and gradients, fills the former two with
  // the model's initial values and binds the working copies. Gradient buckets
  // have at most `cap` bytes, the first one `first`.
  absl::Status SetUp(const StrategyContext& context, int64_t first, int64_t cap,
                     GradientBuckets::OnReady on_ready);

  // Makes the buckets the sums over all ranks, which are the same bits on each
  // (with local_steps(), those of this rank).
  // All gradients of the step are in their buckets, and `on_ready` has been
  // called for each bucket: a plugin that starts its collectives there waits
  // for them here.
  virtual void Reduce() = 0;

  // A bucket's sums of this rank, to be summed over the ranks in place until
  // Reduce returns: in a deterministic run float64 (grid_sums.h), which then
  // becomes the gradient. A strategy that sums gradients().Take(bucket) has the
  // ranks' sums rounded before.
  at::Tensor TakeSums(int bucket);

  ProcessGroup& group() { return *context_.group; }
  OptimizerShard& shard() { return shard_; }
  GradientBuckets& gradients() { return *gradients_; }

 private:
  // This rank's share of work on sums and masters that are equal on all ranks.
  std::pair<int64_t, int64_t> Share() const;

  StrategyContext context_;
  LayoutRules rules_;
  FlatLayout layout_;  // trainable parameters
  OptimizerShard shard_;
  FrozenParameters frozen_;
  std::vector<at::Tensor> parameters_;
  std::unique_ptr<GradientBuckets> gradients_;
  at::Tensor GridSums(int bucket) const;
  // In a deterministic run, like the gradient; else buckets add up the
  // micro-steps.
  at::Tensor grid_sums_;
  bool takes_sums_ = false;  // TakeSums has been called
  int micro_step_ = 0;
  int micro_steps_ = 1;
};

}  // namespace capstan

#endif  // CAPSTAN_STRATEGIES_COMMON_REPLICATED_H_
