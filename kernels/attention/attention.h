// SPDX-License-Identifier: Apache-2.0
//
// Attention with grouped queries, causal or bidirectional: softmax(q k^T /
// sqrt(head_dim)) v, where query head h reads key-value head h / (heads /
// kv_heads).
#ifndef CAPSTAN_KERNELS_ATTENTION_ATTENTION_H_
#define CAPSTAN_KERNELS_ATTENTION_ATTENTION_H_

#include <ATen/core/Tensor.h>

#include "kernels/attention/packed_rows.h"
#include "kernels/memory.h"

namespace capstan::kernels {

struct AttentionShape {
  int64_t batch = 1;
  int64_t heads = 1;
  int64_t kv_heads = 1;
  int64_t head_dim = 1;
  // Whether a query sees only the keys up to its own position, or all.
  bool causal = true;
};

// Attention within each sequence, or each document of a packed one, with
// gradients. q: [batch * T, heads * head_dim]; k, v: [batch * T, kv_heads *
// head_dim]. Returns a tensor of q's shape.
at::Tensor Attention(const at::Tensor& q, const at::Tensor& k,
                     const at::Tensor& v, const AttentionShape& shape,
                     const Packing& packing = nullptr);

// Causal attention without gradients for T queries, the last of L positions. k,
// v: [batch, L, kv_heads * head_dim], with any strides in the first two
// dimensions.
at::Tensor CachedAttention(const at::Tensor& q, const at::Tensor& k,
                           const at::Tensor& v, const AttentionShape& shape);

// Adds to `ledger` what Attention leaves on the CPU for q [rows, ..]: its
// output and what it keeps, which includes k and v or copies of them.
void PlanAttention(const AttentionShape& shape, int64_t rows,
                   c10::ScalarType dtype, bool packed, MemoryLedger* ledger);
// Continues from there: what it keeps, including q, k and v, and the output's
// gradient become the gradients of q, k and v.
void PlanAttentionBackward(const AttentionShape& shape, int64_t rows,
                           c10::ScalarType dtype, bool packed,
                           MemoryLedger* ledger);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_ATTENTION_ATTENTION_H_
