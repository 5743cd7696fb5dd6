// SPDX-License-Identifier: Apache-2.0
//
// Tells the stand-in device about the blocks of LibTorch's caching allocator.
// In libcapstan_standin_operators.so: the only parts of the stand-in that link
// LibTorch are there.
#include <c10/cuda/CUDACachingAllocator.h>

#include "testing/standin/runtime/blocks.h"

namespace capstan::standin {
namespace {

using c10::CachingDeviceAllocator::TraceEntry;

void OnTrace(const TraceEntry& entry) {
  Block block;
  block.begin = reinterpret_cast<const void*>(entry.addr_);
  block.bytes = static_cast<int64_t>(entry.size_);
  block.device = entry.device_;
  block.stream = entry.stream_;
  block.of_graph = entry.mempool_.first != 0 || entry.mempool_.second != 0;
  if (entry.action_ == TraceEntry::ALLOC) BlockAllocated(block);
  // Not FREE_REQUESTED: other streams (record_stream) may still use it then.
  if (entry.action_ == TraceEntry::FREE_COMPLETED) BlockFreed(block);
}

}  // namespace
}  // namespace capstan::standin

// Called by the runtime at each cudaMalloc until it returns true: the allocator
// exists, and tells. (It calls cudaMalloc itself, with its lock, which is
// recursive.)
extern "C" __attribute__((visibility("default"))) bool
capstan_standin_watch_allocator() {
  auto* const allocator = c10::cuda::CUDACachingAllocator::get();
  if (allocator == nullptr || !allocator->initialized()) return false;
  allocator->attachAllocatorTraceTracker(&capstan::standin::OnTrace);
  return true;
}
