// SPDX-License-Identifier: Apache-2.0
//
// Matrix products of tensors, and linear layers on rows: y = x W^T, for x
// [rows, in] and W [out, in] as in Hugging Face's files.
#ifndef CAPSTAN_KERNELS_LAYERS_LINEAR_H_
#define CAPSTAN_KERNELS_LAYERS_LINEAR_H_

#include <ATen/core/Tensor.h>

#include "base/gradient_sink.h"
#include "kernels/layers/adapter.h"
#include "kernels/memory.h"

namespace capstan::kernels {

struct TransformerBlockShape;

// out [m, n] = alpha * a b + beta * out, without autograd; a beta of 0
// overwrites `out`. a, b: [m, k], [k, n], with any strides.
void MatMulInto(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
                double beta = 0.0, double alpha = 1.0);

// a b, without autograd.
at::Tensor MatMul(const at::Tensor& a, const at::Tensor& b);

// The destination of a weight's gradient: `sink`'s place for `parameter`, or,
// without a sink, a new tensor.
struct WeightPlace {
  GradientSink* sink = nullptr;  // outlives the graph
  int parameter = -1;

  // The sink's place; undefined without a sink.
  GradientSink::Place Open() const;
};

// residual + x W^T, plus the adapter, with gradients to all. residual: [rows,
// out].
at::Tensor LinearAdd(const at::Tensor& x, const at::Tensor& weight,
                     const at::Tensor& residual, const Adapter& adapter = {});

// Adds to `ledger` what a block's LinearAdd leaves: its output.
void PlanLinearAdd(const TransformerBlockShape& s, MemoryLedger* ledger);
// Continues from there, given the output's gradient, which is also the
// residual's: leaves that of x.
void PlanLinearAddBackward(const TransformerBlockShape& s,
                           MemoryLedger* ledger);

// The gradient dy^T x to W, in the form that a backward returns.
at::Tensor WeightGradient(const WeightPlace& place, const at::Tensor& dy,
                          const at::Tensor& x);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_LAYERS_LINEAR_H_
