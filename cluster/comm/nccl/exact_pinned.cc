// SPDX-License-Identifier: Apache-2.0
#include "cluster/comm/nccl/exact_pinned.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "plugins/sdk/memory.h"

namespace capstan {
namespace {

bool Stays(MemoryCategory category) {
  return category == MemoryCategory::kParameters ||
         category == MemoryCategory::kGradients ||
         category == MemoryCategory::kMasters ||
         category == MemoryCategory::kOptimizerState;
}

struct Block {
  void* memory = nullptr;
  int64_t bytes = 0;
};

std::atomic<int64_t> held_bytes{0};

// Waits for the device, which may be copying.
void Free(void* context) {
  auto* const block = static_cast<Block*>(context);
  // At the process's end CUDA may be gone, and the pages are free anyway.
  if (cudaFreeHost(block->memory) != cudaSuccess) cudaGetLastError();
  held_bytes -= block->bytes;
  delete block;
}

class ExactAllocator final : public at::HostAllocator {
 public:
  explicit ExactAllocator(at::HostAllocator* libtorchs) : rest_(libtorchs) {}

  at::DataPtr allocate(size_t bytes) override {
    if (bytes == 0 || !Stays(CurrentMemoryCategory())) {
      return rest_->allocate(bytes);
    }
    auto block = std::make_unique<Block>();
    block->bytes = static_cast<int64_t>(bytes);
    C10_CUDA_CHECK(cudaHostAlloc(&block->memory, bytes, cudaHostAllocDefault));
    held_bytes += block->bytes;
    void* const memory = block->memory;
    return {memory, block.release(), &Free, at::DeviceType::CPU};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  // Of memory that isn't its own it takes no note, and none is needed: Free
  // waits.
  bool record_event(void* memory, void* context, c10::Stream stream) override {
    return rest_->record_event(memory, context, stream);
  }
  void empty_cache() override { rest_->empty_cache(); }
  at::HostStats get_stats() override {
    at::HostStats stats = rest_->get_stats();
    stats.allocated_bytes.current += held_bytes;
    return stats;
  }
  void reset_accumulated_stats() override { rest_->reset_accumulated_stats(); }
  void reset_peak_stats() override { rest_->reset_peak_stats(); }
  void begin_allocate_to_pool(
      c10::MempoolId_t pool, std::function<bool(c10::Stream)> filter) override {
    rest_->begin_allocate_to_pool(pool, std::move(filter));
  }
  void end_allocate_to_pool(c10::MempoolId_t pool) override {
    rest_->end_allocate_to_pool(pool);
  }
  void release_pool(c10::MempoolId_t pool) override {
    rest_->release_pool(pool);
  }

 private:
  at::HostAllocator* const rest_;
};

}  // namespace

void TakeExactPinnedMemory() {
  static auto* const allocator =
      new ExactAllocator(at::getHostAllocator(at::kCUDA));  // outlives tensors
  at::setHostAllocator(at::kCUDA, allocator, /*priority=*/1);
}

}  // namespace capstan
