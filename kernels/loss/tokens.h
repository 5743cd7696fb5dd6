// SPDX-License-Identifier: Apache-2.0
//
// What depends on a token's number at both ends of a language model: the
// embedding's gradient and cross-entropy, without autograd.
#ifndef CAPSTAN_KERNELS_LOSS_TOKENS_H_
#define CAPSTAN_KERNELS_LOSS_TOKENS_H_

#include <ATen/core/Tensor.h>

namespace capstan::kernels {

// The sum over rows with target >= 0 of weight * -log softmax(logits)[target],
// a float32 scalar on the logits' device, computed in float32 without autograd.
// logits: [rows, vocab], targets: [rows] int64, weights: [rows] float32 or
// undefined (all 1). If `gradient`, replaces the logits by the sum's gradient:
// factor * weight * (softmax(logits) - 1 at the target), 0 in rows without one,
// rounded to the logits' dtype at the end. Otherwise the logits may be
// overwritten.
//
// With a smoothing s in [0, 1) the target's -log softmax counts 1 - s, the mean
// of the vocabulary's s ("label smoothing", Szegedy et al., "Rethinking the
// Inception Architecture", 2016, section 7).
at::Tensor CrossEntropySum(at::Tensor& logits, const at::Tensor& targets,
                           bool gradient, double factor = 1.0,
                           const at::Tensor& weights = {},
                           double smoothing = 0.0);

// [rows] float32: log softmax(logits / temperature)[target], 0 in rows without
// a target, computed in float32 without autograd; a row's bits don't depend on
// the others. logits: [rows, vocab], which may be overwritten; targets: [rows]
// int64, on the same device. Sets *entropy, unless it is null, to [rows]
// float32, in nats, 0 in rows without a target.
at::Tensor LogProbs(const at::Tensor& logits, const at::Tensor& targets,
                    double temperature, at::Tensor* entropy);

// d_weight[tokens[r]] += dy[r] for each row r, without autograd; rows of other
// tokens aren't touched. dy: [rows, hidden]; tokens: [rows] int64 in [0,
// vocab); d_weight: [vocab, hidden] contiguous, float32 or of dy's dtype. Each
// sum is computed in float32, in the order of rows, and rounded once: on CPU
// the bits don't depend on the number of threads.
void AddEmbeddingGradient(const at::Tensor& dy, const at::Tensor& tokens,
                          at::Tensor& d_weight);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_LOSS_TOKENS_H_
