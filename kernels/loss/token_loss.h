// SPDX-License-Identifier: Apache-2.0
//
// Both ends of a language model, which may share one weight: the embedding, and
// the output head with its cross-entropy.
#ifndef CAPSTAN_KERNELS_LOSS_TOKEN_LOSS_H_
#define CAPSTAN_KERNELS_LOSS_TOKEN_LOSS_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "kernels/context/run_device.h"
#include "kernels/layers/linear.h"
#include "kernels/memory.h"

namespace capstan::kernels {

// The gradient of the head's weight: scale * (so_far + d_logits^T hidden), kept
// in these parts from forward on. In 16-bit types so_far is float32, and
// d_logits may be scaled by a factor that `scale` undoes.
struct HeadGradient : public torch::CustomClassHolder {
  at::Tensor so_far;    // [vocab, hidden]; undefined: 0
  at::Tensor d_logits;  // [rows, vocab] of the last chunk of rows
  at::Tensor hidden;    // [rows, hidden] of the same
  at::Tensor scale;     // scalar; undefined before the head's backward
};

// Passes that gradient to the embedding's backward of the same forward, if both
// use one weight: it then gets a single gradient instead of one per use.
using TiedGradient = c10::intrusive_ptr<HeadGradient>;

// Rows of weight [vocab, hidden] for tokens [rows] int64: [rows, hidden]. With
// `tied` (may be null), backward includes the head's gradient. The weight's
// gradient goes to `place`.
at::Tensor Embedding(const at::Tensor& weight, const at::Tensor& tokens,
                     const TiedGradient& tied, const WeightPlace& place = {});

// The sum over rows with target >= 0 of row_weight * -log softmax(hidden
// W^T)[target], a float32 scalar computed in float32. hidden: [rows, hidden],
// weight: [vocab, hidden], targets: [rows] int64, row_weights: [rows] float32
// or undefined (all 1). With gradients to hidden and weight, which 16-bit types
// round once, after multiplying by the incoming gradient (the loss scale). The
// weight's gradient goes to `place`, or stays in `tied`, which belongs to this
// forward alone; Embedding must then be part of the same graph whenever the
// weight needs a gradient. Logits exist for one chunk of rows at a time, of at
// most `logits_bytes` (0: LogitsBytes of the device); if an eighth or more of
// the rows has no target, only for the others. With a softcap, logits
// become cap * tanh(logit / cap) first; then they are divided by `temperature`.
// `smoothing`: as CrossEntropySum's.
//
// For hidden rows on a GPU, targets and row_weights may be on the CPU, and
// targets should be: else the head computes all rows, since the host would have
// to wait to learn which have a target (seen_rows.h).
//
// On GPUs the weight's gradient of 16-bit types is summed in float32 by the
// products, and goes to the sink's float32 sums (WideGradientSink) unrounded.
at::Tensor HeadCrossEntropySum(
    const at::Tensor& hidden, const at::Tensor& weight,
    const at::Tensor& targets, const TiedGradient& tied,
    int64_t logits_bytes = 0, const WeightPlace& place = {},
    const at::Tensor& row_weights = {}, double softcap = 0.0,
    double smoothing = 0.0, double temperature = 1.0);

// [rows, vocab]: the logits that HeadCrossEntropySum has, without gradient and
// undivided.
at::Tensor HeadLogits(const at::Tensor& hidden, const at::Tensor& weight,
                      double softcap);

// [rows] float32 without gradient: LogProbs (tokens.h) of hidden W^T, whose
// logits exist as for HeadCrossEntropySum, in whose arguments' terms these are.
at::Tensor HeadLogProbs(const at::Tensor& hidden, const at::Tensor& weight,
                        const at::Tensor& targets, int64_t logits_bytes,
                        double softcap, double temperature,
                        at::Tensor* entropy);

// The logits of a chunk on CPUs, which stay in the last-level cache or near it.
constexpr int64_t kLogitsBytes = int64_t{64} << 20;
// On `device`. A GPU's products want thousands of rows, and each chunk reads
// and writes the sum of the weight's gradient: 2 GiB are 21,000 rows of 50,000
// tokens in bfloat16.
int64_t LogitsBytes(const RunDevice& device);

// The properties of the two ends that determine their memory.
struct TokenLossShape {
  int64_t rows = 0;
  int64_t hidden = 0;
  int64_t vocab = 0;
  c10::ScalarType dtype = c10::ScalarType::Float;
  bool trained = true;  // whether the weight has a gradient
  bool tied = false;
  bool sink = true;  // whether gradients go to a sink's float32 places
  bool softcap = false;
  RunDevice device = {};  // a CPU
};

// Rows of logits per chunk, and in the last chunk.
struct LogitsPieces {
  int64_t count = 1;
  int64_t rows = 1;
  int64_t last = 1;
};
LogitsPieces PiecesOf(int64_t rows, int64_t row_bytes, int64_t logits_bytes);

// Adds to `ledger` what HeadCrossEntropySum, with a target in each row, keeps
// for backward besides its input.
void PlanHead(const TokenLossShape& s, MemoryLedger* ledger);
// Continues from there. Leaves the gradient of the hidden rows and, for a tied
// weight, what is kept for the embedding; else the hidden rows are freed, too.
void PlanHeadBackward(const TokenLossShape& s, MemoryLedger* ledger);
// From the gradient of Embedding's output to that of the weight.
void PlanEmbeddingBackward(const TokenLossShape& s, MemoryLedger* ledger);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_LOSS_TOKEN_LOSS_H_
