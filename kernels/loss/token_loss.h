// SPDX-License-Identifier: Apache-2.0
//
// The two ends of a language model: the embedding of tokens, and the output
// head with the cross-entropy of the next tokens, made for weights that both
// may share.
#ifndef CAPSTAN_KERNELS_LOSS_TOKEN_LOSS_H_
#define CAPSTAN_KERNELS_LOSS_TOKEN_LOSS_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "kernels/layers/linear.h"
#include "kernels/memory.h"

namespace capstan {
namespace kernels {

// The gradient that the head gives its weight: scale * (so_far + d_logits^T
// hidden), kept as these parts from forward on. In 16-bit types so_far is
// float32, and d_logits may be a multiple, which scale then undoes.
struct HeadGradient : public torch::CustomClassHolder {
  at::Tensor so_far;    // [vocab, hidden]; undefined: 0
  at::Tensor d_logits;  // [rows, vocab] of the last piece of rows
  at::Tensor hidden;    // [rows, hidden] of the same
  at::Tensor scale;     // scalar; undefined before the head's backward
};

// Carries that gradient to the embedding's backward of the same forward, when
// both use one weight: the weight then gets one gradient, made in one piece,
// where autograd would make one for each use and add them.
using TiedGradient = c10::intrusive_ptr<HeadGradient>;

// Rows of weight [vocab, hidden] for tokens [rows] int64: [rows, hidden]. With
// `tied` (may be null), its backward includes what the head left there. The
// weight's gradient goes to `place`.
at::Tensor Embedding(const at::Tensor& weight, const at::Tensor& tokens,
                     const TiedGradient& tied, const WeightPlace& place = {});

// The sum over rows with target >= 0 of row_weight * -log softmax(hidden
// W^T)[target], a float32 scalar; in float32 whatever the dtype of the logits.
// hidden: [rows, hidden], weight: [vocab, hidden], targets: [rows] int64,
// row_weights: [rows] float32 or undefined (all 1). With gradients to hidden
// and weight, which 16-bit types round once, after the incoming gradient (the
// loss scale) has multiplied them; with `tied`, an object for this one forward,
// the weight's is left there instead, and Embedding must be part of the same
// graph whenever weight wants one; without, it goes to `place`. Logits exist
// for a piece of the rows at a time; on CPUs, where an eighth of the rows or
// more has no target, for the others alone.
constexpr int64_t kLogitsBytes = int64_t{64} << 20;
at::Tensor HeadCrossEntropySum(const at::Tensor& hidden,
                               const at::Tensor& weight,
                               const at::Tensor& targets,
                               const TiedGradient& tied,
                               int64_t logits_bytes = kLogitsBytes,
                               const WeightPlace& place = {},
                               const at::Tensor& row_weights = {});

// The two ends on the CPU, as far as their memory depends on it.
struct TokenLossShape {
  int64_t rows = 0;
  int64_t hidden = 0;
  int64_t vocab = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
  bool trained = true;  // whether the weight has a gradient
  bool tied = false;
  bool sink = true;  // whether float32 gradients go to a sink's places
};

// Rows of logits that are made at a time, and those of the last time.
struct LogitsPieces {
  int64_t count = 1;
  int64_t rows = 1;
  int64_t last = 1;
};
LogitsPieces PiecesOf(int64_t rows, int64_t row_bytes,
                      int64_t logits_bytes = kLogitsBytes);

// What HeadCrossEntropySum, with a target in each row, leaves on `ledger`
// beside its input: what waits for backward, of which the gradient of the
// hidden rows, float32, is the first to be taken.
void PlanHead(const TokenLossShape& s, MemoryLedger* ledger);
// From there on. The gradient of the hidden rows is left and, of a tied weight,
// what waits for the embedding; otherwise the hidden rows are freed, too.
void PlanHeadBackward(const TokenLossShape& s, MemoryLedger* ledger);
// From the gradient of Embedding's output, and what the head has left if tied,
// to that of the weight.
void PlanEmbeddingBackward(const TokenLossShape& s, MemoryLedger* ledger);

}  // namespace kernels
}  // namespace capstan

#endif  // CAPSTAN_KERNELS_LOSS_TOKEN_LOSS_H_
