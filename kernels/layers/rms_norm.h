// SPDX-License-Identifier: Apache-2.0
//
// Root-mean-square normalisation (Zhang & Sennrich, 2019), as in Llama:
//   rstd = 1 / sqrt(mean(x^2) + eps),  y = weight * (x * rstd)
// with rstd and x * rstd in float32, rounded to x's dtype before the weight;
// or, with `plus_one`, as in Gemma,
//   y = (1 + weight) * (x * rstd)
// in float32, rounded once. All tensors but rstd are of one dtype.
#ifndef CAPSTAN_KERNELS_LAYERS_RMS_NORM_H_
#define CAPSTAN_KERNELS_LAYERS_RMS_NORM_H_

#include <ATen/core/Tensor.h>

#include "kernels/layers/linear.h"
#include "kernels/memory.h"

namespace capstan::kernels {

// With gradients to x [rows, n] and weight [n]; on GPUs the latter's goes to
// `place`.
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps,
                   bool plus_one = false, const WeightPlace& place = {});

// The parts, without autograd, for operators that fuse the norm. x: [rows, n],
// or [groups, heads, n], of which groups may be apart, and rows = groups *
// heads.
struct RmsNormResult {
  at::Tensor y;     // [rows, n], of x's dtype
  at::Tensor rstd;  // [rows] float32
};
RmsNormResult RmsNormForward(const at::Tensor& x, const at::Tensor& weight,
                             double eps, bool plus_one = false);

// The same of x + branch, rounded, which is a residual's new value. `again`: a
// second copy of the sum; null: none.
struct AddRmsNormResult {
  at::Tensor sum;  // [rows, n], of x's dtype
  RmsNormResult norm;
};
AddRmsNormResult AddRmsNormForward(const at::Tensor& x,
                                   const at::Tensor& branch,
                                   const at::Tensor& weight, double eps,
                                   bool plus_one = false,
                                   at::Tensor* again = nullptr);

// Recomputes y from rstd; x is the input that was normalised.
at::Tensor RmsNormAgain(const at::Tensor& x, const at::Tensor& weight,
                        const at::Tensor& rstd, bool plus_one = false);

// Where backward writes.
struct RmsNormTarget {
  at::Tensor x;       // like x, and as x may be apart; undefined: a new tensor
  at::Tensor weight;  // [n], float32 or of x's dtype; undefined: a new one
  bool add = false;   // to `weight`, rather than overwrite it
};
struct RmsNormGradients {
  at::Tensor x;       // residual (if defined) + the gradient to x
  at::Tensor weight;  // undefined unless wanted
};
// Computed in float32, each result rounded once; on CPU the bits don't depend
// on the number of threads. dy, x, residual: [rows, n]; x may be as above, dy
// of any shape, without residual.
RmsNormGradients RmsNormBackward(const at::Tensor& dy, const at::Tensor& x,
                                 const at::Tensor& weight,
                                 const at::Tensor& rstd,
                                 const at::Tensor& residual, bool want_weight,
                                 bool plus_one = false,
                                 RmsNormTarget into = {});

// Add to `ledger` what forward (y and rstd) and backward (the gradients) leave
// on the CPU, for x [rows, n].
void PlanRmsNorm(int64_t rows, int64_t n, c10::ScalarType dtype,
                 MemoryLedger* ledger);
void PlanRmsNormBackward(int64_t rows, int64_t n, c10::ScalarType dtype,
                         bool want_weight, MemoryLedger* ledger);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_LAYERS_RMS_NORM_H_
