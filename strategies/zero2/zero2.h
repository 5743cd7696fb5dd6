// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_STRATEGIES_ZERO2_ZERO2_H_
#define CAPSTAN_STRATEGIES_ZERO2_ZERO2_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "plugins/sdk/strategy.h"
#include "strategies/common/flat_layout.h"
#include "strategies/common/gradient_buckets.h"
#include "strategies/common/reduce_queue.h"
#include "strategies/zero2/zero2.pb.h"

namespace capstan {
namespace zero2 {

// ZeRO stage 2 (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training
// Trillion Parameter Models", SC 2020, section 5.2): each rank has the whole
// working copy of the parameters, and one shard of gradients, masters and
// optimizer state.
//
// Parameters are in buckets in backward order. Each bucket is cut into one
// equal slice per rank; rank r's shard is slice r of each bucket. So a bucket
// takes one reduce-scatter, after which its buffer is freed, and one in-place
// all-gather. Parameters that an optimizer needs whole have separate buckets,
// whose slices hold whole parameters. Masters in the compute dtype (if not
// offloaded) are the rank's slices of the working copy itself.
class Zero2 final : public Strategy {
 public:
  static absl::StatusOr<std::unique_ptr<Zero2>> Create(const Config& config);

  absl::Status Check(const StrategyRequest& request) const override;
  StrategyPlan Plan(const StrategyRequest& request) const override;
  absl::Status Setup(const StrategyContext& context) override;
  absl::Span<OptimizerShard> OptimizerShards() override;
  void BeginMicroStep(int index, int count) override;
  // Gathers of the last step's update may still be in progress.
  bool wants_unit_callbacks() const override { return true; }
  void PreForward(int unit) override;
  void FinishBackward() override;
  at::Tensor GradientSquaredSum() override;
  void PublishShard(int shard) override;
  void PublishParameters() override;
  std::vector<OwnedSlice> OwnedSlices() const override;
  absl::Status ForEachFullParameter(
      const std::function<absl::Status(int, const at::Tensor&)>& fn) override;

 private:
  // This rank's slice of a bucket. Sorted in forward order: what the next
  // forward needs first is updated and gathered first.
  struct Slice {
    int bucket = 0;
    at::Tensor whole;     // the bucket of the working copy
    at::Tensor mine;      // this rank's part of it
    at::Tensor gradient;  // as in its OptimizerShard
    std::unique_ptr<Work> gather;
  };

  explicit Zero2(const Config& config);

  void PlanBuckets(const StrategyRequest& request,
                   const std::vector<Bucket>& buckets,
                   StrategyPlan* plan) const;
  std::vector<Bucket> MakeBuckets(const std::vector<ParameterSpec>& specs,
                                  const LayoutRules& rules, int world_size,
                                  FlatLayout* layout) const;
  bool separate_masters(const PrecisionPolicy& precision) const;
  absl::Status MakeShards();
  absl::Status MakeFrozen();
  void MakeGradientBuckets();
  void Reduce(int bucket);
  void WaitForGather(Slice& slice);
  void WaitForGathers();

  const Config config_;
  const int64_t reduce_bucket_size_;
  const int64_t allgather_bucket_size_;
  const bool overlap_;
  const bool offload_;
  const bool reduce_once_;

  StrategyContext context_;
  FlatLayout layout_;  // trainable parameters, in padded buckets
  std::vector<Bucket> buckets_;
  at::Tensor working_;    // [layout_.numel], compute dtype
  at::Tensor gradients_;  // [layout_.numel / ranks], reduce dtype
  FlatLayout frozen_layout_;
  at::Tensor frozen_;
  std::vector<at::Tensor> parameters_;

  std::vector<OptimizerShard> shards_;  // shards_[i] is of slices_[i]
  std::vector<Slice> slices_;
  std::vector<std::vector<int>> slices_of_unit_;
  int64_t gathering_ = 0;  // elements in progress

  std::unique_ptr<GradientBuckets> gradient_buckets_;
  std::unique_ptr<ReduceQueue> queue_;
  int micro_step_ = 0;
  int micro_steps_ = 1;
};

}  // namespace zero2
}  // namespace capstan

#endif  // CAPSTAN_STRATEGIES_ZERO2_ZERO2_H_
