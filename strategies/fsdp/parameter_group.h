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

// Lays out each group's parameters so that `shards` ranks can share them
// equally.
std::vector<FlatLayout> LayOutGroups(const std::vector<ParameterSpec>& specs,
                                     const std::vector<GroupSpec>& groups,
                                     const LayoutRules& rules, int shards);

// The whole parameters of a group, which exist between Gather and Free.
//
// The tensors that the model is bound to are views of one storage. Free takes
// the storage's memory away, Gather gives it new memory and all-gathers the
// ranks' shards into it: autograd's saved tensors share the storage, and so
// find the values again in backward. Their version counters don't move, since
// the values don't.
class ParameterGroup {
 public:
  // `shard`: this rank's part of the layout in the compute dtype, on the run's
  // device or in host memory; it is read by Gather, and outlives this.
  // With memory at first, of no particular values: views want to be made while
  // there is some.
  ParameterGroup(GroupSpec spec, FlatLayout layout, const at::Tensor& shard,
                 ProcessGroup* shards);

  const GroupSpec& spec() const { return spec_; }
  const FlatLayout& layout() const { return layout_; }
  int64_t shard_numel() const { return shard_.numel(); }
  // [layout.numel], over the storage.
  const at::Tensor& whole() const { return whole_; }

  // Starts to make the parameters whole; nothing if they are.
  void Gather();
  // They are whole when it returns; Gather comes first.
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
  at::Tensor on_device_;  // an offloaded shard on its way
  std::unique_ptr<Work> work_;
};

}  // namespace fsdp
}  // namespace capstan

#endif  // CAPSTAN_STRATEGIES_FSDP_PARAMETER_GROUP_H_
