// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_STRATEGIES_FSDP_FSDP_H_
#define CAPSTAN_STRATEGIES_FSDP_FSDP_H_

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "plugins/sdk/process_group.h"
#include "plugins/sdk/strategy.h"
#include "strategies/common/flat_layout.h"
#include "strategies/common/gradient_buckets.h"
#include "strategies/common/reduce_queue.h"
#include "strategies/fsdp/fsdp.pb.h"
#include "strategies/fsdp/schedule.h"

namespace capstan {
namespace fsdp {

// Lays out each group's parameters so that `shards` ranks share them equally.
std::vector<FlatLayout> LayOutGroups(const std::vector<ParameterSpec>& specs,
                                     const std::vector<GroupSpec>& groups,
                                     const LayoutRules& rules, int shards);

// The whole parameters of a group, which exist between Gather and Free.
//
// The tensors bound to the model are views of one storage. Free releases the
// storage's memory; Gather allocates it again and all-gathers the ranks' shards
// into it. Autograd's saved tensors share the storage, so backward finds the
// values again; version counters don't change, since the values don't.
class ParameterGroup {
 public:
  // `shard`: this rank's slice of the layout in the compute dtype, on the run's
  // device or in host memory; Gather reads it, and it outlives this. Memory is
  // initially allocated, but uninitialised: making views requires it.
  ParameterGroup(GroupSpec spec, FlatLayout layout, const at::Tensor& shard,
                 ProcessGroup* shards);

  const GroupSpec& spec() const { return spec_; }
  const FlatLayout& layout() const { return layout_; }
  int64_t shard_numel() const { return shard_.numel(); }
  // [layout.numel], over the storage.
  const at::Tensor& whole() const { return whole_; }

  // Starts to gather the parameters; a no-op if they are whole.
  void Gather();
  // Blocks until the parameters are whole. Requires a preceding Gather.
  void Wait();
  void Free();
  bool gathered() const { return gathered_; }

 private:
  const GroupSpec spec_;
  const FlatLayout layout_;
  const at::Tensor shard_;
  ProcessGroup* const shards_;
  at::Tensor whole_;
  int64_t bytes_ = 0;
  bool gathered_ = false;
  at::Tensor on_device_;  // an offloaded shard being copied
  std::unique_ptr<Work> work_;
};

// Fully sharded data parallelism (Zhao et al., "PyTorch FSDP: Experiences on
// Scaling Fully Sharded Data Parallel", VLDB 2023): each rank keeps its shard
// of parameters, gradients, masters and optimizer state. A unit's parameters
// are gathered ahead of its forward and backward and freed afterwards; its
// gradients are reduce-scattered after its backward.
//
// The schedule is computed once (schedule.h); the callbacks advance the
// position in the pass and issue everything due.
class Fsdp final : public Strategy {
 public:
  static absl::StatusOr<std::unique_ptr<Fsdp>> Create(const Config& config);

  absl::Status Check(const StrategyRequest& request) const override;
  StrategyPlan Plan(const StrategyRequest& request) const override;
  absl::Status Setup(const StrategyContext& context) override;
  absl::Span<OptimizerShard> OptimizerShards() override;
  void BeginMicroStep(int index, int count) override;
  bool wants_unit_callbacks() const override { return true; }
  bool collective_forward() const override { return true; }
  void PreForward(int unit) override;
  void PreBackward(int unit) override;
  void FinishForward() override;
  void FinishBackward() override;
  at::Tensor GradientSquaredSum() override;
  void PublishParameters() override;
  std::vector<OwnedSlice> OwnedSlices() const override;
  absl::Status ForEachFullParameter(
      const std::function<absl::Status(int, const at::Tensor&)>& fn) override;

 private:
  enum class Pass { kNone, kTraining, kForwardOnly };

  explicit Fsdp(const Config& config);

  int shards(int world_size) const;
  ScheduleOptions TrainingPass() const;
  absl::Status SplitRanks();
  absl::Status MakeShards();
  absl::Status MakeFrozenShards();
  void MakeGroupsAndBuckets();
  // Replicas hold the same shard: this rank's share of the work on it.
  std::pair<int64_t, int64_t> Share() const;
  // This rank's slice of a group's layout.
  std::pair<int64_t, int64_t> MySlice(const FlatLayout& layout) const;

  void StartPass(Pass pass);
  void AdvanceTo(int position);
  void WaitForNeeds(int position);
  void FinishPass();
  void Reduce(int group);
  bool last_micro_step() const { return micro_step_ + 1 == micro_steps_; }

  const Config config_;
  const bool reshard_;
  const int prefetch_;
  const bool reduce_once_;

  StrategyContext context_;
  ProcessGroup* shard_group_ = nullptr;    // ranks that share one copy
  ProcessGroup* replica_group_ = nullptr;  // ranks with the same shard, or null
  std::unique_ptr<ProcessGroup> own_shard_group_;
  std::unique_ptr<ProcessGroup> own_replica_group_;

  LayoutRules rules_;
  std::vector<GroupSpec> specs_;
  std::vector<FlatLayout> layouts_;  // one per group
  // The shards of all trainable groups, concatenated.
  OptimizerShard shard_;
  std::vector<int64_t> offsets_;    // of each group's part there; -1: frozen
  std::vector<at::Tensor> frozen_;  // one per group; undefined: trainable
  std::vector<std::unique_ptr<ParameterGroup>> groups_;
  std::vector<at::Tensor> parameters_;

  Schedule training_schedule_;
  Schedule forward_schedule_;
  Pass pass_ = Pass::kNone;
  const Schedule* schedule_ = nullptr;  // of the current pass
  int position_ = -1;
  size_t next_operation_ = 0;

  std::vector<int> bucket_of_group_;  // -1: frozen
  std::unique_ptr<GradientBuckets> buckets_;
  std::unique_ptr<ReduceQueue> queue_;
  int micro_step_ = 0;
  int micro_steps_ = 1;
};

}  // namespace fsdp
}  // namespace capstan

#endif  // CAPSTAN_STRATEGIES_FSDP_FSDP_H_
