// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_KERNELS_OPTIMIZER_PEAK_OF_CPU_FOR_TEST_H_
#define CAPSTAN_KERNELS_OPTIMIZER_PEAK_OF_CPU_FOR_TEST_H_

#include <c10/core/Allocator.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace capstan::kernels {

// Counts what this thread allocates on the CPU while it exists, which must be
// freed before it goes.
class PeakOfCpu final : public c10::Allocator {
 public:
  PeakOfCpu() : inner_(c10::GetAllocator(c10::kCPU)) {
    c10::SetAllocator(c10::kCPU, this, kPriority);
  }
  ~PeakOfCpu() override { c10::SetAllocator(c10::kCPU, inner_, kPriority); }
  c10::DataPtr allocate(size_t bytes) override {
    now_ += static_cast<int64_t>(bytes);
    peak_ = std::max(peak_, now_);
    auto* const block = new Block{this, inner_->allocate(bytes), bytes};
    return {block->data.get(), block, &Free, c10::Device(c10::kCPU)};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
  int64_t peak() const { return peak_; }

 private:
  static constexpr uint8_t kPriority = 100;
  struct Block {
    PeakOfCpu* owner;
    c10::DataPtr data;
    size_t bytes;
  };
  static void Free(void* block) {
    auto* const freed = static_cast<Block*>(block);
    freed->owner->now_ -= static_cast<int64_t>(freed->bytes);
    delete freed;
  }

  c10::Allocator* const inner_;
  int64_t now_ = 0, peak_ = 0;
};

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_OPTIMIZER_PEAK_OF_CPU_FOR_TEST_H_
