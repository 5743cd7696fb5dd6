// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_KERNELS_LAYERS_ATTENTION_INPUT_H_
#define CAPSTAN_KERNELS_LAYERS_ATTENTION_INPUT_H_

#include <ATen/core/Tensor.h>

#include <array>

#include "kernels/layers/adapter.h"
#include "kernels/layers/transformer_block_shape.h"

namespace capstan::kernels {

struct QueryKeyValue {
  at::Tensor q;  // [rows, heads * head_dim]
  at::Tensor k;  // [rows, kv_heads * head_dim]
  at::Tensor v;  // [rows, kv_heads * head_dim]
};

struct AttentionWeights {
  at::Tensor norm;                  // [hidden]
  at::Tensor q, k, v;               // [heads * head_dim, hidden] each
  std::array<Adapter, 3> adapters;  // of q, k, v
};

// The inputs of a block's attention: n = RmsNorm(x), q = rope(n Wq^T), k =
// rope(n Wk^T), v = n Wv^T, plus adapters, with gradients to x, the weights and
// the adapters. x: [rows, hidden]; rope_table: see ApplyRope. Keeps x for
// backward, but not n.
QueryKeyValue AttentionInput(const at::Tensor& x,
                             const AttentionWeights& weights, double eps,
                             const at::Tensor& rope_table);

// Adds to `ledger` what AttentionInput leaves: q, k, v and what it keeps
// besides x.
void PlanAttentionInput(const TransformerBlockShape& s, MemoryLedger* ledger);
// Continues from there, given the gradients of q, k and v.
void PlanAttentionInputBackward(const TransformerBlockShape& s,
                                MemoryLedger* ledger);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_LAYERS_ATTENTION_INPUT_H_
