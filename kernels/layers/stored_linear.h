// SPDX-License-Identifier: Apache-2.0
//
// For autograd nodes: the linear layers of a block, y = x W^T + bias plus an
// adapter, where a layer may be some rows of the matrix that is stored (q, k
// and v one below the other).
#ifndef CAPSTAN_KERNELS_LAYERS_STORED_LINEAR_H_
#define CAPSTAN_KERNELS_LAYERS_STORED_LINEAR_H_

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>
#include <vector>

#include "kernels/context/gradient_sink.h"
#include "kernels/layers/linear.h"
#include "kernels/layers/weight.h"

namespace capstan::kernels {

// The inputs of an autograd node that are defined; the others have index -1.
class NodeInputs {
 public:
  NodeInputs() { tensors_.reserve(16); }
  int Add(const at::Tensor& tensor) {
    if (!tensor.defined()) return -1;
    tensors_.push_back(tensor);
    return static_cast<int>(tensors_.size()) - 1;
  }
  at::TensorList tensors() const { return tensors_; }

 private:
  std::vector<at::Tensor> tensors_;
};

// Whether an input of the running backward needs a gradient.
inline bool Wants(torch::autograd::AutogradContext* ctx, int input) {
  return input >= 0 && ctx->needs_input_grad(input);
}

// A matrix as it is stored, with what belongs to it.
struct StoredLinear {
  Weight weight;            // [out, in]
  at::Tensor bias;          // [out]; undefined: none
  Adapter adapter;          // of the same shape
  int parameter = -1;       // the sink's index of the matrix
  int bias_parameter = -1;  // and of the bias; -1: none

  bool defined() const { return weight.defined(); }
  // Adds the tensors to the inputs of a node.
  void AddTo(NodeInputs* inputs);
  int weight_input = -1, bias_input = -1, a_input = -1, b_input = -1;
  int magnitude_input = -1;
};

// Rows of a stored layer, as a layer [rows, in] of its own, which shares its
// memory.
struct LinearPart {
  LinearPart() = default;
  // All rows.
  LinearPart(const StoredLinear& stored, int of);
  LinearPart(const StoredLinear& stored, int of, int64_t begin, int64_t rows);

  int64_t rows() const { return weight.rows(); }
  int64_t columns() const { return weight.columns(); }

  int of = -1;  // which stored layer
  int64_t begin = 0;
  bool whole = true;
  Weight weight;
  at::Tensor bias;
  Adapter adapter;
};

// y [n, rows] = x W^T + bias + the adapter + beta * y, for x [n, in]; beta is
// 0, which overwrites y, or 1.
void ForwardInto(const LinearPart& part, const at::Tensor& x,
                 const at::Tensor& y, double beta = 0.0);

// dx [n, in] = dy W + the adapter's + beta * dx, for dy [n, rows].
void BackwardInto(const LinearPart& part, const at::Tensor& dy,
                  const at::Tensor& dx, double beta = 0.0);

// The gradient to x W^T plus the adapter's, for dy [n, rows], that to y: dy
// itself, unless the adapter is DoRA's.
at::Tensor GradientToSum(const LinearPart& part, const at::Tensor& dy);

// y [n, rows] = bias in each row.
void FillRows(const at::Tensor& bias, const at::Tensor& y);

// One backward's gradients of a stored layer, of which each part comes once.
class StoredGradients {
 public:
  // `stored` and `ctx` outlive this. sink: null: new tensors. Those of 16-bit
  // matrices, and on GPUs of biases, go to its float32 sums
  // (WideGradientSink).
  StoredGradients(const StoredLinear& stored,
                  torch::autograd::AutogradContext* ctx, GradientSink* sink)
      : stored_(stored), ctx_(ctx), sink_(sink) {}

  // Where the gradient of a part's matrix goes: gradient = dy^T x + beta *
  // gradient; undefined if none is wanted.
  struct Target {
    at::Tensor gradient;  // [rows, in], of the matrix's dtype or float32
    double beta = 0.0;
  };
  Target MatrixOf(const LinearPart& part);
  // Whether the matrix has a gradient.
  bool WantsMatrix() const;
  // Likewise the sum of dy's rows: [rows].
  Target BiasOf(const LinearPart& part);

  // Of the bias and the adapter, for x [n, in] and dy [n, rows].
  void AddBias(const LinearPart& part, const at::Tensor& dy);
  void AddAdapter(const LinearPart& part, const at::Tensor& x,
                  const at::Tensor& dy);
  // Those of A and B alone, which have been made.
  void TakeAdapter(const LinearPart& part, at::Tensor a, at::Tensor b);
  // All of them.
  void Add(const LinearPart& part, const at::Tensor& x, const at::Tensor& dy);

  // Moves them to the places of the node's inputs.
  void MoveTo(torch::autograd::variable_list* gradients);

 private:
  const StoredLinear& stored_;
  torch::autograd::AutogradContext* const ctx_;
  GradientSink* const sink_;
  WeightPlace::AnyPlace matrix_, bias_;
  at::Tensor a_, b_, magnitude_;
};

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_LAYERS_STORED_LINEAR_H_
