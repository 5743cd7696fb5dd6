// SPDX-License-Identifier: Apache-2.0
#include "strategies/fsdp/parameter_group.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/Exception.h>

#include <utility>

#include "plugins/sdk/memory.h"

namespace capstan {
namespace fsdp {

std::vector<FlatLayout> LayOutGroups(const std::vector<ParameterSpec>& specs,
                                     const std::vector<GroupSpec>& groups,
                                     const LayoutRules& rules, int shards) {
  std::vector<FlatLayout> layouts;
  std::vector<int64_t> loads(shards, 0);
  for (const GroupSpec& group : groups) {
    if (group.whole) {
      layouts.push_back(
          LayOutWhole(specs, group.parameters, rules.multiple, &loads));
      continue;
    }
    layouts.push_back(LayOut(specs, group.parameters, rules.multiple));
    std::vector<Bucket> all = {{0, layouts.back().numel, group.parameters}};
    PadBuckets(shards, &layouts.back(), &all, rules.multiple);
  }
  return layouts;
}

ParameterGroup::ParameterGroup(GroupSpec spec, FlatLayout layout,
                               const at::Tensor& shard, ProcessGroup* shards)
    : spec_(std::move(spec)),
      layout_(std::move(layout)),
      shard_(shard),
      shards_(shards) {
  const MemoryScope scope(MemoryCategory::kBuckets);
  whole_ =
      at::empty({layout_.numel},
                shard.options().device(shards->device()).pinned_memory(false));
  bytes_ = static_cast<int64_t>(whole_.nbytes());
  gathered_ = true;
}

void ParameterGroup::Gather() {
  if (gathered_) return;
  at::NoGradGuard no_grad;
  c10::StorageImpl* storage = whole_.storage().unsafeGetStorageImpl();
  {
    const MemoryScope scope(MemoryCategory::kBuckets);
    storage->set_data_ptr_noswap(storage->allocator()->allocate(bytes_));
  }
  storage->set_nbytes(bytes_);
  on_device_ = shard_.to(whole_.device(), /*non_blocking=*/true);
  gathered_ = true;
  if (shards_->size() == 1) {
    whole_.copy_(on_device_);
    on_device_.reset();
    return;
  }
  // .data_ptr's owner stays alive, so the storage isn't freed before Wait.
  work_ = shards_->AllGather(whole_.detach(), on_device_);
}

void ParameterGroup::Wait() {
  TORCH_CHECK(gathered_,
              "fsdp: a unit's forward ran again in the same micro-step; fsdp "
              "needs models that run each unit once: use zero2 or ddp");
  if (work_ == nullptr) return;
  work_->Wait();
  work_.reset();
  on_device_.reset();
}

void ParameterGroup::Free() {
  if (!gathered_) return;
  Wait();
  c10::StorageImpl* storage = whole_.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(at::DataPtr(nullptr, whole_.device()));
  storage->set_nbytes(0);
  gathered_ = false;
}

}  // namespace fsdp
}  // namespace capstan
