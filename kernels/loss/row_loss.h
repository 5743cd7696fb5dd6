// SPDX-License-Identifier: Apache-2.0
//
// The output head's cross-entropy, one sum for each text of a batch, or each
// token's.
#ifndef CAPSTAN_KERNELS_LOSS_ROW_LOSS_H_
#define CAPSTAN_KERNELS_LOSS_ROW_LOSS_H_

#include <ATen/core/Tensor.h>

#include "kernels/layers/linear.h"
#include "kernels/loss/token_loss.h"

namespace capstan::kernels {

// [S, B] float32: for each of S sets of targets, the sum of -log softmax(hidden
// W^T)[target] over the positions of a text with a target >= 0. hidden: [B * T,
// hidden], weight: [vocab, hidden], targets: [S, B, T] int64; sets with a
// target at the same position must have the same one there.
//
// What the sums are worth to a loss is known only in backward. Forward keeps
// nothing but the hidden rows, and backward is HeadCrossEntropySum, forward and
// backward, with that worth as the positions' weights: the logits' product runs
// twice, which costs a third of the head, and no logits are kept. `tied`,
// `logits_bytes`, `place` and `softcap` as there; targets may be on the CPU, as
// there.
at::Tensor HeadCrossEntropyRows(const at::Tensor& hidden,
                                const at::Tensor& weight,
                                const at::Tensor& targets,
                                const TiedGradient& tied,
                                int64_t logits_bytes = 0,
                                const WeightPlace& place = {},
                                double softcap = 0.0);

// [rows] float32: log softmax(hidden W^T / temperature)[target], 0 in rows
// without a target, with gradients as HeadCrossEntropyRows has them, and of the
// same cost. targets: [rows] int64. Sets *entropy, unless it is null, to [rows]
// float32 without gradient (LogProbs in tokens.h).
at::Tensor HeadTokenLogProbs(const at::Tensor& hidden, const at::Tensor& weight,
                             const at::Tensor& targets, double temperature,
                             at::Tensor* entropy, const TiedGradient& tied,
                             const WeightPlace& place = {},
                             double softcap = 0.0, int64_t logits_bytes = 0);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_LOSS_ROW_LOSS_H_
