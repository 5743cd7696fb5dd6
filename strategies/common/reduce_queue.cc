// SPDX-License-Identifier: Apache-2.0
#include "strategies/common/reduce_queue.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/collective_label.h"
#include "plugins/sdk/memory.h"

namespace capstan {

void ReduceQueue::Reserve() {
  at::NoGradGuard no_grad;
  while (!entries_.empty() &&
         static_cast<int>(entries_.size()) + reserved_ >= kReducesUnderWay) {
    FinishOldest();
  }
  ++reserved_;
}

void ReduceQueue::Start(const at::Tensor& sums, const at::Tensor& destination,
                        bool add, bool last) {
  at::NoGradGuard no_grad;
  while (static_cast<int>(entries_.size()) >= kReducesUnderWay) FinishOldest();
  Entry entry = {nullptr, sums, at::Tensor(), destination,
                 add,     last, std::string()};
  if (replicas_ != nullptr) {
    entry.label = std::string(CollectiveLabel::Current());
  }
  if (shards_->size() == 1) {
    entry.slice = sums;
  } else if (!add && !OnHost(entry)) {
    entry.slice = destination;
  } else {
    const MemoryScope scope(MemoryCategory::kBuckets);
    entry.slice = at::empty({destination.numel()}, sums.options());
  }
  if (shards_->size() > 1) {
    entry.work = shards_->ReduceScatter(entry.slice, sums);
  }
  entries_.push_back(std::move(entry));
  reserved_ = std::max(0, reserved_ - 1);
}

ReduceQueue::Entry ReduceQueue::TakeOldest() {
  Entry entry = std::move(entries_.front());
  entries_.pop_front();
  return entry;
}

void ReduceQueue::FinishOldest() {
  Entry& oldest = entries_.front();
  if (oldest.work != nullptr) oldest.work->Wait();
  oldest.work.reset();
  if (!oldest.slice.is_same(oldest.sums)) oldest.sums.reset();
  const bool replicate = replicas_ != nullptr && oldest.last;
  if (OnHost(oldest)) {
    if (replicate && oldest.add) {
      // The sum of all micro-steps, back on the device. If there is no memory
      // for it, this is repeated, so that this rank skips no collective.
      FinishCopy();
      oldest.slice.add_(oldest.destination.to(oldest.slice.device()));
      oldest.add = false;
    }
    Entry entry = TakeOldest();
    if (replicate) {
      const CollectiveLabel label(entry.label);
      replicas_->AllReduce(entry.slice)->Wait();
    }
    return StartCopy(std::move(entry));
  }
  Entry entry = TakeOldest();
  if (entry.add) {
    entry.destination.add_(entry.slice);
  } else if (!entry.slice.is_same(entry.destination)) {
    entry.destination.copy_(entry.slice);
  }
  if (replicate) Replicate(std::move(entry));
}

void ReduceQueue::Replicate(Entry entry) {
  entry.sums.reset();
  entry.slice.reset();
  const CollectiveLabel label(entry.label);
  entry.work = replicas_->AllReduce(entry.destination);
  replicating_.push_back(std::move(entry));
}

void ReduceQueue::StartCopy(Entry entry) {
  if (copying_ != nullptr && copying_->add) FinishCopy();
  // The device waits for the copy before, whose slice's memory it then has
  // again; the host doesn't, until Drain.
  if (copying_ != nullptr) copies_->Join();
  copying_.reset();
  entry.sums.reset();
  if (entry.add) {
    entry.sums =
        at::empty({entry.slice.numel()},
                  entry.slice.options().device(at::kCPU).pinned_memory(true));
  }
  at::Tensor target = entry.add ? entry.sums : entry.destination;
  copies_->Run([&] { target.copy_(entry.slice, /*non_blocking=*/true); });
  copying_ = std::make_unique<Entry>(std::move(entry));
}

void ReduceQueue::FinishCopy() {
  if (copying_ == nullptr) return;
  copies_->Wait();
  if (copying_->add) copying_->destination.add_(copying_->sums);
  copying_.reset();
}

void ReduceQueue::Drain() {
  at::NoGradGuard no_grad;
  while (!entries_.empty()) FinishOldest();
  while (!replicating_.empty()) {
    replicating_.front().work->Wait();
    replicating_.pop_front();
  }
  FinishCopy();
}

}  // namespace capstan
