// SPDX-License-Identifier: Apache-2.0
//
// How a fused transformer block divides its memory: planned once from the
// sizes, one allocation each for what is kept and for the temporaries of
// forward and of backward, the same in each layer and step.
#ifndef CAPSTAN_KERNELS_LAYERS_TRANSFORMER_BLOCK_MEMORY_H_
#define CAPSTAN_KERNELS_LAYERS_TRANSFORMER_BLOCK_MEMORY_H_

#include <algorithm>
#include <cstdint>

#include "kernels/attention/attention.h"
#include "kernels/memory.h"

namespace capstan {
namespace kernels {

// The sizes of a block, in rows and floats a row.
struct TransformerBlockDims {
  TransformerBlockDims(int64_t rows, int64_t hidden, int64_t intermediate,
                       const AttentionShape& shape)
      : rows(rows),
        hidden(hidden),
        inner(intermediate),
        q(shape.heads * shape.head_dim),
        kv(shape.kv_heads * shape.head_dim),
        shape(shape) {}
  int64_t rows, hidden, inner, q, kv;
  AttentionShape shape;
};

// What forward leaves for backward. A null base only counts.
struct TransformerBlockKept {
  TransformerBlockKept(const TransformerBlockDims& d, float* base)
      : parts(base) {
    q = parts.Take(d.rows * d.q);
    k = parts.Take(d.rows * d.kv);
    v = parts.Take(d.rows * d.kv);
    mixed = parts.Take(d.rows * d.q);
    log_sum_exp = parts.Take(d.rows * d.shape.heads);
    y = parts.Take(d.rows * d.hidden);
    rstd = parts.Take(d.rows);
    post_rstd = parts.Take(d.rows);
    gate = parts.Take(d.rows * d.inner);
    up = parts.Take(d.rows * d.inner);
  }
  MemoryParts parts;
  float *q, *k, *v, *mixed, *log_sum_exp, *y, *rstd, *post_rstd, *gate, *up;
};

// Forward's temporaries.
struct TransformerBlockForwardSpace {
  TransformerBlockForwardSpace(const TransformerBlockDims& d, float* base)
      : parts(base) {
    normed = parts.Take(d.rows * d.hidden);
    activation = parts.Take(d.rows * d.inner);
  }
  MemoryParts parts;
  float *normed, *activation;
};

// Backward's.
struct TransformerBlockBackwardSpace {
  TransformerBlockBackwardSpace(const TransformerBlockDims& d, float* base)
      : parts(base) {
    normed = parts.Take(d.rows * d.hidden);
    d_normed = parts.Take(d.rows * d.hidden);
    d_y = parts.Take(d.rows * d.hidden);
    // First the one for the MLP, then the others for the attention.
    MemoryParts attention(base == nullptr ? nullptr : base + parts.used());
    d_mixed = attention.Take(d.rows * d.q);
    dq = attention.Take(d.rows * d.q);
    dk = attention.Take(d.rows * d.kv);
    dv = attention.Take(d.rows * d.kv);
    d_activation = parts.Take(std::max(d.rows * d.inner, attention.used()));
  }
  MemoryParts parts;
  float *normed, *d_normed, *d_y, *d_mixed, *dq, *dk, *dv, *d_activation;
};

}  // namespace kernels
}  // namespace capstan

#endif  // CAPSTAN_KERNELS_LAYERS_TRANSFORMER_BLOCK_MEMORY_H_
