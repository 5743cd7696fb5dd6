// SPDX-License-Identifier: Apache-2.0
//
// What the nodes of block_parts.h share.
#ifndef CAPSTAN_KERNELS_LAYERS_BLOCK_NODES_H_
#define CAPSTAN_KERNELS_LAYERS_BLOCK_NODES_H_

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/context/gradient_sink.h"
#include "kernels/layers/block_parts.h"
#include "kernels/layers/gpu_path.h"
#include "kernels/layers/linear.h"
#include "kernels/layers/rms_norm.h"
#include "kernels/layers/stored_linear.h"

namespace capstan::kernels {

constexpr int kX = 0;  // x is each node's first input

// The norm before a branch; without a weight, none.
struct InputNorm {
  at::Tensor weight;
  double eps = 0.0;
  bool plus_one = false;
  WeightPlace place;  // of the weight's gradient, on GPUs
  int input = -1;     // of the node

  // The normalised rows, and what backward needs.
  RmsNormResult Forward(const at::Tensor& x) const {
    if (!weight.defined()) return {x, at::Tensor()};
    return RmsNormForward(x, weight, eps, plus_one);
  }
  at::Tensor Again(const at::Tensor& x, const at::Tensor& rstd) const {
    return weight.defined() ? RmsNormAgain(x, weight, rstd, plus_one) : x;
  }
  // To x, plus `residual` if defined; and to the weight.
  void Backward(torch::autograd::AutogradContext* ctx, const at::Tensor& dn,
                const at::Tensor& x, const at::Tensor& rstd,
                const at::Tensor& residual,
                torch::autograd::variable_list* gradients) const {
    if (!weight.defined()) {
      (*gradients)[kX] = residual.defined() ? dn + residual : dn;
      return;
    }
    const bool wanted = ctx->needs_input_grad(input);
    WeightPlace::AnyPlace to;
    if (wanted) to = place.OpenOnGpu(weight);
    RmsNormGradients made =
        RmsNormBackward(dn, x, weight, rstd, residual, wanted, plus_one,
                        {at::Tensor(), std::move(to.gradient), to.add});
    (*gradients)[kX] = std::move(made.x);
    if (!to.wide) (*gradients)[input] = std::move(made.weight);
  }
};

inline at::Tensor Rows(const at::Tensor& like, int64_t width) {
  return at::empty({like.size(0), width}, like.options().requires_grad(false));
}

// Where these nodes put the gradients of matrices; null: new tensors, as in
// float32 on CPUs.
inline GradientSink* SinkFor(const at::Tensor& x,
                             const TransformerBlockOptions& options) {
  return OnGpuPath(x) || x.scalar_type() != at::kFloat ? options.sink : nullptr;
}

// Adds the stored ones and the norm to a node's inputs, after x.
inline NodeInputs InputsOf(const at::Tensor& x, InputNorm* norm,
                           std::vector<StoredLinear>* stored) {
  NodeInputs inputs;
  inputs.Add(x);
  norm->input = inputs.Add(norm->weight);
  for (StoredLinear& of : *stored) of.AddTo(&inputs);
  return inputs;
}

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_LAYERS_BLOCK_NODES_H_
