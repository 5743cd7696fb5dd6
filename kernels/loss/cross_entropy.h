// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_KERNELS_LOSS_CROSS_ENTROPY_H_
#define CAPSTAN_KERNELS_LOSS_CROSS_ENTROPY_H_

#include <ATen/core/Tensor.h>

namespace capstan {
namespace kernels {

// The sum over rows with target >= 0 of weight * -log softmax(logits)[target],
// as a float32 scalar on the logits' device, in float32 arithmetic and without
// autograd. logits: [rows, vocab], targets: [rows] int64, weights: [rows]
// float32 or undefined (all 1). If `gradient`, the logits are replaced by the
// sum's gradient to them: weight times softmax(logits) less 1 at the target, 0
// in rows without one; times `factor`, before it's rounded to the logits'
// dtype. Otherwise they may be overwritten.
at::Tensor CrossEntropySum(at::Tensor& logits, const at::Tensor& targets,
                           bool gradient, double factor = 1.0,
                           const at::Tensor& weights = {});

}  // namespace kernels
}  // namespace capstan

#endif  // CAPSTAN_KERNELS_LOSS_CROSS_ENTROPY_H_
