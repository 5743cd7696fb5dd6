// SPDX-License-Identifier: Apache-2.0
#include "kernels/layers/swiglu.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>

#include "base/profile.h"
#include "base/simd/simd.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/fast_path.h"

namespace capstan::kernels {

at::Tensor SwiGlu(const at::Tensor& gate, const at::Tensor& up) {
  const ProfileScope profile("swiglu");
  if (const auto* cuda = cuda::For(gate)) return cuda::SwiGlu(*cuda, gate, up);
  if (!HasRowKernels(gate) || !HasRowKernels(up)) return at::silu(gate) * up;
  at::Tensor out = at::empty_like(gate);
  WithStorage(gate.scalar_type(), [&](auto storage) {
    using T = decltype(storage);
    const T *g = ReadAs<T>(gate), *u = ReadAs<T>(up);
    T* o = WriteAs<T>(out);
    at::parallel_for(0, gate.numel(), RowGrain(1), [&](int64_t i, int64_t end) {
      Simd().rows<T>().swiglu(g + i, u + i, end - i, o + i);
    });
  });
  return out;
}

SwiGluGradients SwiGluBackward(const at::Tensor& gate, const at::Tensor& up,
                               at::Tensor d_activation) {
  const ProfileScope profile("swiglu");
  if (const auto* cuda = cuda::For(gate)) {
    SwiGluGradients out{at::empty_like(gate), at::empty_like(up),
                        d_activation.contiguous()};
    cuda::SwiGluBackward(*cuda, gate, up, out.activation, out.gate, out.up);
    return out;
  }
  if (!HasRowKernels(gate) || !HasRowKernels(up) ||
      !HasRowKernels(d_activation)) {
    const at::Tensor silu = at::silu(gate);
    return {at::silu_backward(d_activation * up, gate), d_activation * silu,
            silu * up};
  }
  SwiGluGradients out{at::empty_like(gate), at::empty_like(up), d_activation};
  WithStorage(gate.scalar_type(), [&](auto storage) {
    using T = decltype(storage);
    const T *g = ReadAs<T>(gate), *u = ReadAs<T>(up);
    T *d = WriteAs<T>(d_activation), *dg = WriteAs<T>(out.gate);
    T* du = WriteAs<T>(out.up);
    at::parallel_for(0, gate.numel(), RowGrain(1), [&](int64_t i, int64_t end) {
      Simd().rows<T>().swiglu_backward(g + i, u + i, end - i, d + i, dg + i,
                                       du + i);
    });
  });
  return out;
}

}  // namespace capstan::kernels
