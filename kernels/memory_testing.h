// SPDX-License-Identifier: Apache-2.0
//
// For tests: what an operator allocates, measured by a counting allocator.
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
#include "kernels/plain_products_for_test.h"
#include "trainer/memory/tracking_allocator.h"

namespace capstan {

// Drops each gradient once it is made, as a strategy that copies it does.
class DropGradient final : public torch::autograd::PostAccumulateGradHook {
 public:
  void operator()(const at::Tensor& parameter) override {
    parameter.mutable_grad().reset();
  }
};

namespace kernels {

// A leaf whose gradient is dropped.
inline at::Tensor TrainedWeight(at::Tensor value) {
  value.set_requires_grad(true);
  torch::autograd::impl::set_post_acc_grad_hooks(
      value, std::make_unique<DropGradient>());
  return value;
}

// The allocations of one thread, relative to those at the start: by forward(),
// which returns the output, and by its backward.
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
  // The test keeps the output; in a model, its gradient replaces it.
  const at::Tensor gradient = at::ones_like(out);
  const int64_t live = Total(TrackedMemory().live);
  ResetTrackedPeak();
  torch::autograd::backward({out}, {gradient});
  memory.backward = Total(TrackedMemory().at_peak) - live;
  return memory;
}

// Whether each number is within `bound` of the largest peak.
inline void ExpectNear(const OperatorMemory& planned,
                       const OperatorMemory& measured, double bound) {
  const double most =
      bound * static_cast<double>(measured.kept + std::max(measured.forward,
                                                           measured.backward));
  EXPECT_NEAR(planned.kept, measured.kept, most);
  EXPECT_NEAR(planned.forward, measured.forward, most);
  EXPECT_NEAR(planned.backward, measured.backward, most);
}

// From the ledgers of forward and backward.
inline OperatorMemory MemoryOf(const MemoryLedger& forward,
                               const MemoryLedger& backward) {
  return {forward.live(), forward.peak() - forward.live(),
          backward.peak() - forward.live()};
}

}  // namespace kernels
}  // namespace capstan

#endif  // CAPSTAN_KERNELS_MEMORY_TESTING_H_
