// SPDX-License-Identifier: Apache-2.0
//
// For tests: what an operator allocates, by the allocator that counts.
#ifndef CAPSTAN_KERNELS_MEMORY_TESTING_H_
#define CAPSTAN_KERNELS_MEMORY_TESTING_H_

#include <ATen/Parallel.h>
#include <ATen/ops/ones_like.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstdint>
#include <memory>

#include "kernels/memory.h"
#include "trainer/memory/tracking_allocator.h"

namespace capstan {

// As a strategy that copies each gradient as soon as it is there.
class DropGradient final : public torch::autograd::PostAccumulateGradHook {
 public:
  void operator()(const at::Tensor& parameter) override {
    parameter.mutable_grad().reset();
  }
};

namespace kernels {

// A leaf whose gradient isn't kept.
inline at::Tensor Weight(at::Tensor value) {
  value.set_requires_grad(true);
  torch::autograd::impl::set_post_acc_grad_hooks(
      value, std::make_unique<DropGradient>());
  return value;
}

// One thread's, beyond what was there before: of forward(), which returns the
// output, and of its backward.
template <typename Forward>
OperatorMemory Measure(const Forward& forward) {
  at::set_num_threads(1);
  InstallTrackingAllocator();
  const int64_t before = Total(TrackedMemory().live);
  ResetTrackedPeak();
  const at::Tensor out = forward();
  OperatorMemory memory;
  memory.kept = Total(TrackedMemory().live) - before;
  memory.forward = Total(TrackedMemory().at_peak) - before - memory.kept;
  // The test keeps the output, which in a model its gradient replaces.
  const at::Tensor gradient = at::ones_like(out);
  const int64_t live = Total(TrackedMemory().live);
  ResetTrackedPeak();
  torch::autograd::backward({out}, {gradient});
  memory.backward = Total(TrackedMemory().at_peak) - live;
  return memory;
}

// Whether each number is within `bound` of the greatest peak.
inline void ExpectNear(const OperatorMemory& planned,
                       const OperatorMemory& measured, double bound) {
  const double most =
      bound * static_cast<double>(measured.kept + std::max(measured.forward,
                                                           measured.backward));
  EXPECT_NEAR(planned.kept, measured.kept, most);
  EXPECT_NEAR(planned.forward, measured.forward, most);
  EXPECT_NEAR(planned.backward, measured.backward, most);
}

// Of ledgers of forward and backward.
inline OperatorMemory MemoryOf(const MemoryLedger& forward,
                               const MemoryLedger& backward) {
  return {forward.live(), forward.peak() - forward.live(),
          backward.peak() - forward.live()};
}

}  // namespace kernels
}  // namespace capstan

#endif  // CAPSTAN_KERNELS_MEMORY_TESTING_H_
