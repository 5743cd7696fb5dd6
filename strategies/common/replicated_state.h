// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_STRATEGIES_COMMON_REPLICATED_STATE_H_
#define CAPSTAN_STRATEGIES_COMMON_REPLICATED_STATE_H_

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "plugins/sdk/strategy.h"
#include "strategies/common/flat_layout.h"

namespace capstan {

// A whole model on each rank, in flat buffers: what `single` and `ddp` share.
class ReplicatedState {
 public:
  // Allocates masters, working copies and gradients, fills the first two with
  // the model's initial values and binds the working copies to the model.
  absl::Status Setup(const StrategyContext& context);

  const FlatLayout& layout() const { return layout_; }
  OptimizerShard& shard() { return shard_; }
  const OptimizerShard& shard() const { return shard_; }
  // One a parameter of the model, as bound to it.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }

  // Strategy::ForEachFullParameter: calls fn for each parameter, on rank 0.
  absl::Status ForEachFullParameter(
      const std::function<absl::Status(int, const at::Tensor&)>& fn) const;

  // What it holds and, with all-reduces over the ranks, what it sends.
  static StrategyPlan Plan(const StrategyRequest& request);

 private:
  StrategyContext context_;
  FlatLayout layout_;         // trainable parameters
  FlatLayout frozen_layout_;  // the others
  OptimizerShard shard_;
  at::Tensor frozen_;  // working copies only
  std::vector<at::Tensor> parameters_;
};

}  // namespace capstan

#endif  // CAPSTAN_STRATEGIES_COMMON_REPLICATED_STATE_H_
