// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_STRATEGIES_SINGLE_SINGLE_H_
#define CAPSTAN_STRATEGIES_SINGLE_SINGLE_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "plugins/sdk/strategy.h"
#include "strategies/common/gradient_buckets.h"
#include "strategies/common/replicated_state.h"
#include "strategies/single/single.pb.h"

namespace capstan {
namespace single {

// One rank, no communication: what all other strategies must equal.
class Single final : public Strategy {
 public:
  static absl::StatusOr<std::unique_ptr<Single>> Create(const Config& config);

  absl::Status Check(const StrategyRequest& request) const override;
  StrategyPlan Plan(const StrategyRequest& request) const override;
  absl::Status Setup(const StrategyContext& context) override;
  absl::Span<OptimizerShard> OptimizerShards() override;
  void BeginMicroStep(int index, int count) override;
  void FinishBackward() override;
  at::Tensor GradientSquaredSum() override;
  void PublishParameters() override {}
  std::vector<OwnedSlice> OwnedSlices() const override;
  absl::Status ForEachFullParameter(
      const std::function<absl::Status(int, const at::Tensor&)>& fn) override;

 private:
  ReplicatedState state_;
  std::unique_ptr<GradientBuckets> gradients_;
};

}  // namespace single
}  // namespace capstan

#endif  // CAPSTAN_STRATEGIES_SINGLE_SINGLE_H_
