// SPDX-License-Identifier: Apache-2.0
#include "strategies/common/reduce_queue.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <utility>

#include "base/collective_label.h"
#include "plugins/sdk/memory.h"

namespace capstan {

void ReduceQueue::Start(const at::Tensor& sums, const at::Tensor& destination,
                        bool add) {
  at::NoGradGuard no_grad;
  while (static_cast<int>(entries_.size()) >= kReducesUnderWay) FinishOldest();
  Entry entry = {nullptr, sums, at::Tensor(), destination, add};
  if (replicas_ != nullptr) {
    entry.label = std::string(CollectiveLabel::Current());
  }
  if (shards_->size() == 1) {
    entry.slice = sums;
  } else if (!add && destination.device() == sums.device()) {
    entry.slice = destination;
  } else {
    const MemoryScope scope(MemoryCategory::kBuckets);
    entry.slice = at::empty({destination.numel()}, sums.options());
  }
  if (shards_->size() > 1) {
    entry.work = shards_->ReduceScatter(entry.slice, sums);
  }
  entries_.push_back(std::move(entry));
}

bool ReduceQueue::Step(Entry& entry) {
  if (entry.work != nullptr) entry.work->Wait();
  entry.work.reset();
  if (!entry.slice.is_same(entry.sums)) entry.sums.reset();
  if (replicas_ != nullptr && !entry.replicated) {
    entry.replicated = true;
    const CollectiveLabel label(entry.label);
    entry.work = replicas_->AllReduce(entry.slice);
    return false;
  }
  if (entry.add) {
    entry.destination.add_(entry.slice.to(entry.destination.device()));
  } else if (!entry.slice.is_same(entry.destination)) {
    entry.destination.copy_(entry.slice);
  }
  return true;
}

void ReduceQueue::FinishOldest() {
  while (!Step(entries_.front())) {
  }
  entries_.pop_front();
}

void ReduceQueue::Drain() {
  at::NoGradGuard no_grad;
  // Start all second sums before waiting for the first.
  if (replicas_ != nullptr) {
    for (Entry& entry : entries_) {
      if (!entry.replicated) Step(entry);
    }
  }
  while (!entries_.empty()) FinishOldest();
}

}  // namespace capstan
