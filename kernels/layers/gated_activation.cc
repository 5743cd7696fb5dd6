// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>

#include <utility>

#include "base/profile.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/fast_path.h"
#include "kernels/layers/block_parts.h"
#include "kernels/layers/fused_rows.h"

namespace capstan::kernels {
namespace {

at::Tensor Like(const at::Tensor& t) {
  return at::empty(t.sizes(), t.options());
}

// `made`, in `into` if that is defined.
at::Tensor Moved(at::Tensor made, const at::Tensor& into) {
  if (!into.defined()) return made;
  at::Tensor(into).copy_(made);
  return into;
}

}  // namespace

at::Tensor Gated(Activation activation, const at::Tensor& gate,
                 const at::Tensor& up) {
  if (HasRowKernels(gate) && HasRowKernels(up)) {
    at::Tensor out = at::empty_like(gate);
    WithStorage(gate.scalar_type(), [&](auto storage) {
      using T = decltype(storage);
      Gate(activation, ReadAs<T>(gate), ReadAs<T>(up), gate.numel(),
           WriteAs<T>(out));
    });
    return out;
  }
  const bool silu = activation == Activation::kSilu;
  const ProfileScope profile("swiglu");
  if (const auto* cuda = cuda::For(gate)) {
    return cuda::SwiGlu(*cuda, gate, up, !silu);
  }
  return (silu ? at::silu(gate) : at::gelu(gate, "tanh")) * up;
}

GatedGradients GatedBackward(Activation activation, const at::Tensor& gate,
                             const at::Tensor& up, at::Tensor d_activation,
                             const at::Tensor& into_gate,
                             const at::Tensor& into_up) {
  if (HasRowKernels(gate) && HasRowKernels(up) && HasRowKernels(d_activation) &&
      !into_gate.defined()) {
    GatedGradients out{at::empty_like(gate), at::empty_like(up),
                       std::move(d_activation)};
    WithStorage(gate.scalar_type(), [&](auto storage) {
      using T = decltype(storage);
      GateBackward(activation, ReadAs<T>(gate), ReadAs<T>(up), gate.numel(),
                   WriteAs<T>(out.activation), WriteAs<T>(out.gate),
                   WriteAs<T>(out.up));
    });
    return out;
  }
  const bool silu = activation == Activation::kSilu;
  const ProfileScope profile("swiglu");
  if (const auto* cuda = cuda::For(gate)) {
    GatedGradients out{into_gate.defined() ? into_gate : Like(gate),
                       into_up.defined() ? into_up : Like(up),
                       d_activation.contiguous()};
    cuda::SwiGluBackward(*cuda, gate, up, out.activation, out.gate, out.up,
                         !silu);
    return out;
  }
  const at::Tensor d_inner = d_activation * up;
  const at::Tensor inner = silu ? at::silu(gate) : at::gelu(gate, "tanh");
  return {Moved(silu ? at::silu_backward(d_inner, gate)
                     : at::gelu_backward(d_inner, gate, "tanh"),
                into_gate),
          Moved(d_activation * inner, into_up), inner * up};
}

}  // namespace capstan::kernels
