// SPDX-License-Identifier: Apache-2.0
//
// Linear layers on rows: y = x W^T, for x [rows, in] and W [out, in] as in
// Hugging Face's files.
#ifndef CAPSTAN_KERNELS_LINEAR_H_
#define CAPSTAN_KERNELS_LINEAR_H_

#include <ATen/core/Tensor.h>

namespace capstan {
namespace kernels {

// residual + x W^T, with gradients to all three. residual: [rows, out].
at::Tensor LinearAdd(const at::Tensor& x, const at::Tensor& weight,
                     const at::Tensor& residual);

// y = x W^T without autograd.
at::Tensor LinearForward(const at::Tensor& x, const at::Tensor& weight);

// The gradient dy^T x to W, to be returned from a backward.
at::Tensor WeightGradient(const at::Tensor& weight, const at::Tensor& dy,
                          const at::Tensor& x);

}  // namespace kernels
}  // namespace capstan

#endif  // CAPSTAN_KERNELS_LINEAR_H_
