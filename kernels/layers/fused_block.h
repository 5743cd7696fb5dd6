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

// What determines the memory, in rows and numbers per row.
struct FusedDims {
  int64_t rows, hidden, inner;  // inner: 0 without an MLP
  AttentionShape shape;
  // Norms before attention and MLP, and after them.
  bool attention_norm = true, mlp_norm = true;
  bool attention_post_norm = false, mlp_post_norm = false;
  QueryKeyNorm query_key_norm = QueryKeyNorm::kNone;
  bool recompute_mlp = false;  // gate and up aren't kept

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

// What forward leaves for backward, of T: float, Bf16 or Fp16. With a null base
// it only counts. q and k are as attention takes them, or, if they are
// normalised, as they were before.
template <typename T>
struct FusedKept {
  FusedKept(const FusedDims& d, float* base) : parts(base) {
    const int64_t x = d.rows * d.hidden;
    q = parts.Take<T>(d.rows * d.q());
    k = parts.Take<T>(d.rows * d.kv());
    v = parts.Take<T>(d.rows * d.kv());
    mixed = parts.Take<T>(d.rows * d.q());
    log_sum_exp = parts.Take(d.rows * d.shape.heads);
    if (d.attention_post_norm) {
      branch = parts.Take<T>(x);
    } else if (d.mlp()) {
      y = parts.Take<T>(x);
    }
    rstd = parts.Take(d.rows);
    post_rstd = parts.Take(d.rows);
    if (!d.recompute_mlp) {
      gate = parts.Take<T>(d.rows * d.inner);
      up = parts.Take<T>(d.rows * d.inner);
    }
    q_rstd = parts.Take(d.rows * d.qk_norms(d.shape.heads));
    k_rstd = parts.Take(d.rows * d.qk_norms(d.shape.kv_heads));
    if (d.attention_post_norm) branch_rstd = parts.Take(d.rows);
    if (d.mlp_post_norm) {
      down = parts.Take<T>(x);
      down_rstd = parts.Take(d.rows);
    }
  }
  MemoryParts parts;
  T *q, *k, *v, *mixed;
  T *gate = nullptr, *up = nullptr;
  float *log_sum_exp, *rstd, *post_rstd, *q_rstd, *k_rstd;
  T* y = nullptr;       // x + attention; with a norm between them, instead:
  T* branch = nullptr;  // attention's output before that norm
  float* branch_rstd = nullptr;
  T* down = nullptr;  // the MLP's, likewise
  float* down_rstd = nullptr;
};

// Forward's temporaries.
template <typename T>
struct FusedForwardSpace {
  FusedForwardSpace(const FusedDims& d, float* base) : parts(base) {
    const int64_t x = d.rows * d.hidden;
    if (d.attention_norm || d.mlp_norm) normed = parts.Take<T>(x);
    // The same memory, one after the other.
    float* const shared = base == nullptr ? nullptr : base + parts.used();
    MemoryParts attention(shared), mlp(shared), after_mlp(shared);
    if (d.normed_qk()) {
      q = attention.Take<T>(d.rows * d.q());
      k = attention.Take<T>(d.rows * d.kv());
    }
    if (d.recompute_mlp) {
      gate = mlp.Take<T>(d.rows * d.inner);
      up = mlp.Take<T>(d.rows * d.inner);
    }
    activation = mlp.Take<T>(d.rows * d.inner);
    if (d.mlp_post_norm) branch = after_mlp.Take<T>(x);
    parts.Take(std::max({attention.used(), mlp.used(), after_mlp.used()}));
  }
  MemoryParts parts;
  T* normed = nullptr;
  T *q = nullptr, *k = nullptr;  // as attention takes them
  T *gate = nullptr, *up = nullptr;
  T *activation, *branch = nullptr;
};

// Backward's.
template <typename T>
struct FusedBackwardSpace {
  FusedBackwardSpace(const FusedDims& d, float* base) : parts(base) {
    const int64_t x = d.rows * d.hidden;
    if (d.attention_norm || d.mlp_norm) normed = parts.Take<T>(x);
    d_normed = parts.Take<T>(x);
    if (d.mlp()) d_y = parts.Take<T>(x);
    if (d.mlp() && d.attention_post_norm) y = parts.Take<T>(x);
    // The same memory: first the MLP's, then attention's.
    float* const shared = base == nullptr ? nullptr : base + parts.used();
    MemoryParts attention(shared), mlp(shared);
    d_mixed = attention.Take<T>(d.rows * d.q());
    dq = attention.Take<T>(d.rows * d.q());
    dk = attention.Take<T>(d.rows * d.kv());
    dv = attention.Take<T>(d.rows * d.kv());
    if (d.normed_qk()) {
      q = attention.Take<T>(d.rows * d.q());
      k = attention.Take<T>(d.rows * d.kv());
    }
    if (d.recompute_mlp) {
      gate = mlp.Take<T>(d.rows * d.inner);
      up = mlp.Take<T>(d.rows * d.inner);
    }
    d_activation = mlp.Take<T>(d.rows * d.inner);
    parts.Take(std::max(attention.used(), mlp.used()));
  }
  MemoryParts parts;
  T* normed = nullptr;
  T *d_normed, *d_mixed, *dq, *dk, *dv, *d_activation;
  T *d_y = nullptr, *y = nullptr, *q = nullptr, *k = nullptr;
  T *gate = nullptr, *up = nullptr;
};

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_LAYERS_FUSED_BLOCK_H_
