// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_STRATEGIES_FSDP_PARAMETER_GROUP_H_
#define CAPSTAN_STRATEGIES_FSDP_PARAMETER_GROUP_H_

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "plugins/sdk/process_group.h"
#include "strategies/common/flat_layout.h"
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

}  // namespace fsdp
}  // namespace capstan

#endif  // CAPSTAN_STRATEGIES_FSDP_PARAMETER_GROUP_H_
