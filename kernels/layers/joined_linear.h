// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_KERNELS_LAYERS_JOINED_LINEAR_H_
#define CAPSTAN_KERNELS_LAYERS_JOINED_LINEAR_H_

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <vector>

#include "kernels/layers/stored_linear.h"

namespace capstan::kernels {

// Matrices [rows, n] of one storage that follow one another there in any order,
// as one matrix in the same memory; undefined if they don't. first_rows: where
// each begins in it.
at::Tensor JoinMatrices(c10::ArrayRef<at::Tensor> matrices,
                        std::vector<int64_t>* first_rows);

// For autograd nodes: layers of one input (q, k and v; gate and up) as one
// layer, where their matrices follow one another in memory, as strategies lay
// out what is used in turn: one product for all, in forward and in backward.
class JoinedLinear {
 public:
  JoinedLinear() = default;
  // Joins them only if none is packed, is multiplied in 8 bits (each has scales
  // of its own) or has DoRA's adapter. Biases of all that
  // follow one another in the same order are one vector; others are added one
  // by one.
  explicit JoinedLinear(c10::ArrayRef<LinearPart> parts);

  bool joined() const { return weight_.defined(); }
  // Of y: the columns of all.
  int64_t width() const { return weight_.size(0); }
  // Columns of part i of y [n, width()].
  at::Tensor Part(const at::Tensor& y, int i) const {
    return y.narrow(1, begin_[i], parts_[i].rows());
  }
  std::vector<at::Tensor> Parts(const at::Tensor& y) const;
  // Of the first `count` parts; undefined if others are between them.
  at::Tensor FirstParts(const at::Tensor& y, int count) const;

  // y [n, width()] = x W^T + biases + the adapters'.
  void ForwardInto(const at::Tensor& x, const at::Tensor& y) const;
  // dx [n, in] = dy W + the adapters'.
  void BackwardInto(const at::Tensor& dy, const at::Tensor& dx) const;
  // The gradients of matrices, biases and adapters, to `gradients` by
  // LinearPart::of, of which those of matrices may be one product, too, and
  // those of biases one sum.
  void AddGradients(const at::Tensor& x, const at::Tensor& dy,
                    std::vector<StoredGradients>* gradients) const;

 private:
  void AddBiases(const at::Tensor& dy,
                 std::vector<StoredGradients>* gradients) const;

  std::vector<LinearPart> parts_;
  std::vector<int64_t> begin_;  // of each part's rows
  at::Tensor weight_;           // [width, in]; undefined: not joined
  at::Tensor bias_;             // [width]; undefined: none, or not joined
};

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_LAYERS_JOINED_LINEAR_H_
