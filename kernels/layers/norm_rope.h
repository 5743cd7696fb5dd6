// SPDX-License-Identifier: Apache-2.0
//
// The norm of queries or keys and the rope that follows, for autograd nodes.
#ifndef CAPSTAN_KERNELS_LAYERS_NORM_ROPE_H_
#define CAPSTAN_KERNELS_LAYERS_NORM_ROPE_H_

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>

#include "kernels/layers/linear.h"
#include "kernels/layers/rms_norm.h"

namespace capstan::kernels {

// y = rope(RmsNorm(x)) of x [rows, width], in which each `n` columns have a
// norm of their own: a head, or the whole row.
struct NormRope {
  at::Tensor weight;  // [n]
  double eps = 0.0;
  bool plus_one = false;
  at::Tensor rope_table;  // see ApplyRope
  int64_t head_dim = 0;
  WeightPlace place;  // of the weight's gradient, on GPUs
  int input = -1;     // of the node

  bool defined() const { return weight.defined(); }
  // y: [rows, width], dense. Rows of x may be apart.
  RmsNormResult Forward(const at::Tensor& x) const;
  // The gradient to x goes to `dx` [rows, width], whose rows may be apart, or
  // is returned if that is undefined; the weight's goes to the place of the
  // node's input. dy: dense, used up.
  at::Tensor Backward(torch::autograd::AutogradContext* ctx, at::Tensor dy,
                      const at::Tensor& x, const at::Tensor& rstd,
                      const at::Tensor& dx,
                      torch::autograd::variable_list* gradients) const;
};

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_LAYERS_NORM_ROPE_H_
