// SPDX-License-Identifier: Apache-2.0
//
// Attention on float32 memory on the CPU, without autograd; attention.h has the
// formula.
#ifndef CAPSTAN_KERNELS_ATTENTION_ATTENTION_LOOPS_H_
#define CAPSTAN_KERNELS_ATTENTION_ATTENTION_LOOPS_H_

#include <cstdint>

#include "kernels/attention/attention.h"

namespace capstan::kernels {

// The layout of a problem in memory.
struct AttentionLayout {
  AttentionLayout() = default;
  // Of matrices q, k and v of `rows` rows each.
  AttentionLayout(const AttentionShape& shape, int64_t rows,
                  const PackedRows* packing)
      : shape(shape),
        queries(rows / shape.batch),
        keys(queries),
        kv_batch_stride(keys * shape.kv_heads * shape.head_dim),
        kv_stride(shape.kv_heads * shape.head_dim),
        packing(packing) {}

  AttentionShape shape;
  int64_t queries = 0;  // T
  int64_t keys = 0;     // L; if causal, query t sees those up to L - T + t
  int64_t kv_batch_stride = 0;  // floats
  int64_t kv_stride = 0;
  // The documents of each sequence; null: one each. Requires T = L.
  const PackedRows* packing = nullptr;

  int64_t group() const { return shape.heads / shape.kv_heads; }
  int64_t q_stride() const { return shape.heads * shape.head_dim; }
  float scale() const;  // 1 / sqrt(head_dim)
  // Of query head h of sequence b, and of the kv head that it reads.
  int64_t q_offset(int64_t b, int64_t h) const {
    return b * queries * q_stride() + h * shape.head_dim;
  }
  int64_t kv_offset(int64_t b, int64_t h) const {
    return b * kv_batch_stride + h / group() * shape.head_dim;
  }
};

// T queries, the last of L positions if causal. log_sum_exp: [batch, heads, T],
// for backward.
void AttentionForward(const AttentionLayout& layout, const float* q,
                      const float* k, const float* v, float* out,
                      float* log_sum_exp);

struct AttentionBackwardBuffers {
  const float *q, *k, *v, *out, *d_out, *log_sum_exp;
  float *dq, *dk, *dv;  // overwritten; laid out as q, k, v
};
void AttentionBackward(const AttentionLayout& layout,
                       const AttentionBackwardBuffers& buffers);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_ATTENTION_ATTENTION_LOOPS_H_
