// SPDX-License-Identifier: Apache-2.0
#include "kernels/context/fp8.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <atomic>

namespace capstan {
namespace {

std::atomic<Fp8Underflow*> the_underflow{nullptr};

at::Tensor CountZeros(const at::Tensor& x) {
  // Numbers of 8 bits can't be compared; both zeros have the bits of no
  // magnitude.
  const bool compares = x.element_size() > 1;
  return (compares ? x.eq(0.0) : x.view(at::kByte).bitwise_and(0x7f).eq(0))
      .sum(at::kDouble);
}

}  // namespace

Fp8Underflow::Fp8Underflow(at::Device device)
    : counts_(at::zeros(
          {kKinds, 2}, at::TensorOptions().dtype(at::kDouble).device(device))) {
  the_underflow.store(this, std::memory_order_release);
}

Fp8Underflow::~Fp8Underflow() {
  the_underflow.store(nullptr, std::memory_order_release);
}

void Fp8Underflow::Add(Kind kind, const at::Tensor& x, const at::Tensor& cast) {
  const at::NoGradGuard no_grad;
  const at::Tensor before = CountZeros(x);
  counts_[kind][0].add_(CountZeros(cast).sub_(before));
  counts_[kind][1].add_(static_cast<double>(x.numel())).sub_(before);
}

void Fp8Underflow::Clear() { counts_.zero_(); }

Fp8Underflow* CurrentFp8Underflow() {
  return the_underflow.load(std::memory_order_acquire);
}

}  // namespace capstan
