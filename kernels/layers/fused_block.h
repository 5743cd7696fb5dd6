// SPDX-License-Identifier: Apache-2.0
//
// The memory of a fused transformer block, which follows from its sizes: one
// allocation each for what is kept and for the temporaries of forward and of
// backward, the same in each layer and step.
#ifndef CAPSTAN_KERNELS_LAYERS_FUSED_BLOCK_H_
#define CAPSTAN_KERNELS_LAYERS_FUSED_BLOCK_H_

#include <algorithm>
#include <cstdint>

#include "kernels/attention/attention.h"
#include "kernels/layers/block_parts.h"
#include "kernels/memory.h"

namespace capstan::kernels {

// What determines the memory, in rows and floats per row.
struct FusedDims {
  int64_t rows, hidden, inner;  // inner: 0 without an MLP
  AttentionShape shape;
  // Norms before attention and MLP, and after them.
  bool attention_norm = true, mlp_norm = true;
  bool attention_post_norm = false, mlp_post_norm = false;
  QueryKeyNorm query_key_norm = QueryKeyNorm::kNone;

  bool mlp() const { return inner > 0; }
  int64_t q() const { return shape.heads * shape.head_dim; }
  int64_t kv() const { return shape.kv_heads * shape.head_dim; }
  bool normed_qk() const { return query_key_norm != QueryKeyNorm::kNone; }
  // How many norms a row of queries, or keys, of `heads` heads has.
  int64_t qk_norms(int64_t heads) const {
    return query_key_norm == QueryKeyNorm::kHead  ? heads
           : query_key_norm == QueryKeyNorm::kRow ? 1
                                                  : 0;
  }
};

// What forward leaves for backward. With a null base it only counts. q and k
// are as attention takes them, or, if they are normalised, as they were before.
struct FusedKept {
  FusedKept(const FusedDims& d, float* base) : parts(base) {
    const int64_t x = d.rows * d.hidden;
    q = parts.Take(d.rows * d.q());
    k = parts.Take(d.rows * d.kv());
    v = parts.Take(d.rows * d.kv());
    mixed = parts.Take(d.rows * d.q());
    log_sum_exp = parts.Take(d.rows * d.shape.heads);
    if (d.attention_post_norm) {
      branch = parts.Take(x);
    } else if (d.mlp()) {
      y = parts.Take(x);
    }
    rstd = parts.Take(d.rows);
    post_rstd = parts.Take(d.rows);
    gate = parts.Take(d.rows * d.inner);
    up = parts.Take(d.rows * d.inner);
    q_rstd = parts.Take(d.rows * d.qk_norms(d.shape.heads));
    k_rstd = parts.Take(d.rows * d.qk_norms(d.shape.kv_heads));
    if (d.attention_post_norm) branch_rstd = parts.Take(d.rows);
    if (d.mlp_post_norm) {
      down = parts.Take(x);
      down_rstd = parts.Take(d.rows);
    }
  }
  MemoryParts parts;
  float *q, *k, *v, *mixed, *log_sum_exp, *rstd, *post_rstd, *gate, *up;
  float *q_rstd, *k_rstd;
  float* y = nullptr;       // x + attention; with a norm between them, instead:
  float* branch = nullptr;  // attention's output before that norm
  float* branch_rstd = nullptr;
  float* down = nullptr;  // the MLP's, likewise
  float* down_rstd = nullptr;
};

// Forward's temporaries.
struct FusedForwardSpace {
  FusedForwardSpace(const FusedDims& d, float* base) : parts(base) {
    if (d.attention_norm || d.mlp_norm) normed = parts.Take(d.rows * d.hidden);
    // The same memory, one after the other.
    MemoryParts attention(base == nullptr ? nullptr : base + parts.used());
    if (d.normed_qk()) {
      q = attention.Take(d.rows * d.q());
      k = attention.Take(d.rows * d.kv());
    }
    activation = parts.Take(
        std::max({d.rows * d.inner, attention.used(),
                  d.mlp_post_norm ? d.rows * d.hidden : int64_t{0}}));
    branch = activation;
  }
  MemoryParts parts;
  float* normed = nullptr;
  float *q = nullptr, *k = nullptr;  // as attention takes them
  float *activation, *branch;
};

// Backward's.
struct FusedBackwardSpace {
  FusedBackwardSpace(const FusedDims& d, float* base) : parts(base) {
    const int64_t x = d.rows * d.hidden;
    if (d.attention_norm || d.mlp_norm) normed = parts.Take(x);
    d_normed = parts.Take(x);
    if (d.mlp()) d_y = parts.Take(x);
    if (d.mlp() && d.attention_post_norm) y = parts.Take(x);
    // The same memory: first d_activation in the MLP, then these in attention.
    MemoryParts attention(base == nullptr ? nullptr : base + parts.used());
    d_mixed = attention.Take(d.rows * d.q());
    dq = attention.Take(d.rows * d.q());
    dk = attention.Take(d.rows * d.kv());
    dv = attention.Take(d.rows * d.kv());
    if (d.normed_qk()) {
      q = attention.Take(d.rows * d.q());
      k = attention.Take(d.rows * d.kv());
    }
    d_activation = parts.Take(std::max(d.rows * d.inner, attention.used()));
  }
  MemoryParts parts;
  float* normed = nullptr;
  float *d_normed, *d_mixed, *dq, *dk, *dv, *d_activation;
  float *d_y = nullptr, *y = nullptr, *q = nullptr, *k = nullptr;
};

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_LAYERS_FUSED_BLOCK_H_
