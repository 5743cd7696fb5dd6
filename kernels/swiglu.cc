// SPDX-License-Identifier: Apache-2.0
#include "kernels/swiglu.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>

#include "kernels/fast_path.h"
#include "kernels/simd.h"

namespace capstan {
namespace kernels {

at::Tensor SwiGlu(const at::Tensor& gate, const at::Tensor& up) {
  if (!FastPath(gate)) return at::silu(gate) * up;
  at::Tensor out = at::empty_like(gate);
  const float* g = gate.const_data_ptr<float>();
  const float* u = up.const_data_ptr<float>();
  float* o = out.mutable_data_ptr<float>();
  at::parallel_for(0, gate.numel(), RowGrain(1), [&](int64_t i, int64_t end) {
    Simd().swiglu(g + i, u + i, end - i, o + i);
  });
  return out;
}

SwiGluGradients SwiGluBackward(const at::Tensor& gate, const at::Tensor& up,
                               at::Tensor d_activation) {
  if (!FastPath(gate)) {
    const at::Tensor silu = at::silu(gate);
    return {at::silu_backward(d_activation * up, gate), d_activation * silu,
            silu * up};
  }
  SwiGluGradients out{at::empty_like(gate), at::empty_like(up), d_activation};
  const float* g = gate.const_data_ptr<float>();
  const float* u = up.const_data_ptr<float>();
  float* d = d_activation.mutable_data_ptr<float>();
  float* dg = out.gate.mutable_data_ptr<float>();
  float* du = out.up.mutable_data_ptr<float>();
  at::parallel_for(0, gate.numel(), RowGrain(1), [&](int64_t i, int64_t end) {
    Simd().swiglu_backward(g + i, u + i, end - i, d + i, dg + i, du + i);
  });
  return out;
}

}  // namespace kernels
}  // namespace capstan
