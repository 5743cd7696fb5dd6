// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_KERNELS_LOSS_CROSS_ENTROPY_H_
#define CAPSTAN_KERNELS_LOSS_CROSS_ENTROPY_H_

#include <ATen/core/Tensor.h>

namespace capstan::kernels {

// The sum over rows with target >= 0 of weight * -log softmax(logits)[target],
// a float32 scalar on the logits' device, computed in float32 without autograd.
// logits: [rows, vocab], targets: [rows] int64, weights: [rows] float32 or
// undefined (all 1). If `gradient`, replaces the logits by the sum's gradient:
// factor * weight * (softmax(logits) - 1 at the target), 0 in rows without one,
// rounded to the logits' dtype at the end. Otherwise the logits may be
// overwritten.
at::Tensor CrossEntropySum(at::Tensor& logits, const at::Tensor& targets,
                           bool gradient, double factor = 1.0,
                           const at::Tensor& weights = {});

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_LOSS_CROSS_ENTROPY_H_
