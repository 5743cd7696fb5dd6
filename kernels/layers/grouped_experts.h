// SPDX-License-Identifier: Apache-2.0
//
// For MoeMlp: a layer's experts as grouped products (at::_grouped_mm), whose
// groups are known on the device alone, so that the host doesn't wait.
//
// A grouped product takes matrices that are equally far apart in one storage,
// as strategies lay out parameters that follow one another: an expert's gate
// and up as one, and its down. Where they lie otherwise (fsdp and zero2 deal
// matrices out that an optimizer wants whole) they are copied together first.
// Gradients are made together, of the matrices' dtype, and added to where each
// goes: by one operator, if their places are equally far apart, too.
#ifndef CAPSTAN_KERNELS_LAYERS_GROUPED_EXPERTS_H_
#define CAPSTAN_KERNELS_LAYERS_GROUPED_EXPERTS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kernels/cuda/dispatch.h"
#include "kernels/layers/stored_linear.h"

namespace capstan::kernels {

// Forward, then perhaps Backward, of one call. `stored` is gate, up and down of
// each expert, [inner, hidden] twice and [hidden, inner], the same each time.
class GroupedExperts {
 public:
  // Whether x and the matrices can be multiplied so: HasGroupedProducts(x), and
  // fewer than 1024 experts of dense matrices of x's dtype without adapters,
  // whose sizes are multiples of 8 (16 bytes, which the device loads at once).
  static bool Take(const at::Tensor& x,
                   const std::vector<StoredLinear>& stored);

  // Returns x + the sum over each row's choices of share * expert(n). x, n:
  // [rows, hidden]; expert, share: [rows, top_k] int64 and float32. trained:
  // Backward is to follow, with gradients of matrices. Then each expert has a
  // row more, whose share is 0: the gradients of groups without rows are
  // undefined on compute capability 10.
  at::Tensor Forward(const at::Tensor& x, const at::Tensor& n,
                     const at::Tensor& expert, const at::Tensor& share,
                     const std::vector<StoredLinear>& stored, bool trained);
  // [experts] float32: how many rows chose each.
  const at::Tensor& chosen() const { return groups_.chosen; }

  // dy: [rows, hidden]. Adds the matrices' gradients to `gradients`, one for
  // each of `stored`; *dn becomes the gradient to n. Returns that to share.
  at::Tensor Backward(const at::Tensor& n, const at::Tensor& dy,
                      const std::vector<StoredLinear>& stored,
                      std::vector<StoredGradients>* gradients, at::Tensor* dn);

 private:
  // [places, 2 * inner]: gate and up of n's rows, in their memory's order.
  at::Tensor GateAndUp(const at::Tensor& rows,
                       const std::vector<StoredLinear>& stored) const;

  int64_t top_k_ = 1;
  cuda::ChoiceGroups groups_;
  at::Tensor both_;  // undefined after Forward if RecomputesMlp()
};

// Matrices [rows, n] that are equally far apart in one storage, in that order,
// and each `joined` of them next to one another, as [matrices / joined, joined
// * rows, n] in the same memory; undefined if they aren't.
at::Tensor StackMatrices(const std::vector<at::Tensor>& matrices, int joined);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_LAYERS_GROUPED_EXPERTS_H_
