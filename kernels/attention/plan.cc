// SPDX-License-Identifier: Apache-2.0
//
// What attention allocates.
#include <cstdint>

#include "kernels/attention/attention.h"
#include "kernels/memory.h"

namespace capstan::kernels {
namespace {

// For plans: bytes of tensors.
struct AttentionBytes {
  AttentionBytes(const AttentionShape& shape, int64_t rows,
                 c10::ScalarType dtype)
      : own(dtype == c10::ScalarType::Float),
        grouped(shape.heads != shape.kv_heads),
        q(rows * shape.heads * shape.head_dim * ElementBytes(dtype)),
        kv(rows * shape.kv_heads * shape.head_dim * ElementBytes(dtype)),
        log_sum_exp(rows * shape.heads * kFloatBytes),
        capped(shape.softcap != 0.0),
        copied(shape.batch > 1) {
    const int64_t length = rows / shape.batch;
    scores = rows * shape.heads * length;
    rounded = scores * ElementBytes(dtype);
  }
  // Of float32, which the flash kernels don't have; those that have it don't
  // have groups.
  bool ComposedOnGpu() const { return own && grouped; }
  bool own;  // AttentionFunction rather than ATen's
  bool grouped;
  int64_t q, kv, log_sum_exp;
  // CappedAttention's: scores of all heads, if rows are one document each, and
  // their bytes in q's type. The products copy q, and ungrouped k and v, unless
  // there is but one sequence.
  bool capped, copied;
  int64_t scores, rounded;
};

// As PlanAttentionBackward, of ATen's kernels on a GPU. The flash kernel adds
// up the gradient of q in float32 and, in groups, makes those of k and v for
// each head (mha_bwd in aten/src/ATen/native/transformers/cuda/flash_attn).
void PlanGpuBackward(const AttentionBytes& b, MemoryLedger* ledger) {
  if (b.ComposedOnGpu()) {
    const int64_t scores = b.scores * kFloatBytes;
    ledger->Pass(2 * scores);  // gradients of probabilities and scores
    ledger->Take(3 * b.q);
    ledger->Free(3 * b.q + scores);  // what was kept
    ledger->Free(2 * (b.q - b.kv));  // summed over each group
    ledger->Free(2 * b.q);           // the output and its gradient
    return;
  }
  ledger->Take(b.q + 2 * b.kv);
  const int64_t floats = b.own ? b.q : 2 * b.q;
  ledger->Pass(floats + b.log_sum_exp + (b.grouped ? 2 * b.q : 0));
  // q, k, v, the output and its gradient.
  ledger->Free(3 * b.q + 2 * b.kv + b.log_sum_exp);
}

// As PlanAttention, of CappedAttention.
void PlanCapped(const AttentionBytes& b, MemoryLedger* ledger) {
  const int64_t floats = b.scores * kFloatBytes;
  if (b.grouped) ledger->Take(2 * b.q);
  if (b.copied) ledger->Take(b.q);
  if (b.copied && !b.grouped) ledger->Take(b.kv);
  ledger->Take(2 * b.rounded);  // the tanh and the scores
  ledger->Pass(2 * floats);     // scores and probabilities
  ledger->Take(floats);
  ledger->Free(b.rounded);
  ledger->Take(b.rounded);  // the probabilities, rounded
  if (b.copied && !b.grouped) ledger->Take(b.kv);
  ledger->Take(b.q);
  ledger->Pass(b.q);  // per head, then in rows' order
}

void PlanCappedBackward(const AttentionBytes& b, bool packed,
                        MemoryLedger* ledger) {
  const int64_t floats = b.scores * kFloatBytes;
  ledger->Take(b.q);              // the output's gradient, per head
  ledger->Take(b.rounded + b.q);  // of the probabilities and of v
  ledger->Free(b.rounded);        // the probabilities, rounded
  ledger->Free(b.q);              // the gradient per head
  const int64_t kv = b.grouped ? b.q : b.kv;
  const bool copied = b.grouped || b.copied;
  if (copied) ledger->Free(kv);  // of v
  ledger->Take(floats);
  ledger->Free(b.rounded);
  ledger->Pass(floats);  // of the scores
  ledger->Free(floats);  // the probabilities
  ledger->Take(b.rounded);
  ledger->Free(floats);
  ledger->Pass(2 * b.rounded);  // through the cap
  ledger->Free(b.rounded);      // the tanh
  ledger->Take(2 * b.q);        // of q and k
  ledger->Free(b.rounded);
  ledger->Free(2 * b.q);  // the output and its gradient
  if (packed) ledger->Free(b.q);
  ledger->Free(b.q + (copied ? kv : 2 * kv));
  if (b.grouped) ledger->Free(2 * (b.q - b.kv));  // summed over each group
}

}  // namespace

void PlanAttention(const AttentionShape& shape, int64_t rows,
                   c10::ScalarType dtype, bool packed, MemoryLedger* ledger,
                   bool gpu) {
  const AttentionBytes b(shape, rows, dtype);
  if (!gpu) return ledger->Take(b.q + b.log_sum_exp);
  if (!b.capped) {
    if (!b.ComposedOnGpu()) return ledger->Take(b.q + b.log_sum_exp);
    // Scaled, and repeated for each head of a group; probabilities.
    ledger->Take(3 * b.q + b.scores * kFloatBytes);
    ledger->Pass(b.scores * kFloatBytes);  // scores
    ledger->Take(b.q);
    return ledger->Pass(b.q);  // per head, then in rows' order
  }
  PlanCapped(b, ledger);
  if (packed) ledger->Take(b.q);
}

int64_t AttentionMaskBytes(const AttentionShape& shape, int64_t length,
                           c10::ScalarType dtype, bool gpu) {
  const bool needed = (shape.window > 0 && length > shape.window) ||
                      (shape.causal && shape.softcap != 0.0);
  if (!gpu || dtype == c10::ScalarType::Float || !needed) return 0;
  return length * length * ElementBytes(dtype);
}

void PlanAttentionBackward(const AttentionShape& shape, int64_t rows,
                           c10::ScalarType dtype, bool packed,
                           MemoryLedger* ledger, bool gpu) {
  const AttentionBytes b(shape, rows, dtype);
  if (gpu && !b.capped) return PlanGpuBackward(b, ledger);
  if (gpu) return PlanCappedBackward(b, packed, ledger);
  ledger->Take(b.q + 2 * b.kv);
  ledger->Free(3 * b.q + 2 * b.kv + b.log_sum_exp);
}

}  // namespace capstan::kernels
