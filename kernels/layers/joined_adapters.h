// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_KERNELS_LAYERS_JOINED_ADAPTERS_H_
#define CAPSTAN_KERNELS_LAYERS_JOINED_ADAPTERS_H_

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <vector>

#include "kernels/layers/stored_linear.h"

namespace capstan::kernels {

// For autograd nodes on GPUs: the adapters of layers of one input (q, k and v;
// gate and up), whose matrices A are multiplied as one, which reads the input,
// and reads and writes its gradient, once for all. The layers' own matrices may
// be joined (JoinedLinear), packed or neither.
class JoinedAdapters {
 public:
  JoinedAdapters() = default;
  // Takes the adapters out of the parts if at least two have one, and none is
  // DoRA's or drops inputs; otherwise leaves them there.
  explicit JoinedAdapters(c10::ArrayRef<LinearPart*> parts);

  bool joined() const { return !ones_.empty(); }

  // Without joined adapters the others do nothing.
  // y[i] [n, rows of part i] += scale * x A^T B^T, for x [n, in].
  void AddTo(const at::Tensor& x, at::TensorList y) const;
  // For dy like y: dx [n, in] += the gradient to x; those to A's and B's go to
  // `gradients` by LinearPart::of.
  void Backward(const at::Tensor& x, at::TensorList dy, const at::Tensor& dx,
                std::vector<StoredGradients>* gradients) const;

 private:
  // A part that has an adapter.
  struct One {
    LinearPart part;
    size_t index;   // among all parts
    int64_t begin;  // of its ranks among all
    int64_t rank() const { return part.adapter.a.size(0); }
    // Its columns of [n, ranks of all].
    at::Tensor Of(const at::Tensor& inner) const {
      return inner.narrow(1, begin, rank());
    }
  };
  at::Tensor A() const;  // [ranks of all, in]

  std::vector<One> ones_;  // empty: not joined
};

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_LAYERS_JOINED_ADAPTERS_H_
