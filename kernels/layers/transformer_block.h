// SPDX-License-Identifier: Apache-2.0
//
// A whole layer of a Llama-like model as one operator with its own backward.
#ifndef CAPSTAN_KERNELS_LAYERS_TRANSFORMER_BLOCK_H_
#define CAPSTAN_KERNELS_LAYERS_TRANSFORMER_BLOCK_H_

#include <ATen/core/Tensor.h>

#include <functional>

#include "kernels/attention/attention.h"
#include "kernels/layers/block_parts.h"
#include "kernels/memory.h"

namespace capstan::kernels {

//  y = AttentionOutput(Attention(AttentionInput(x)), x),  GatedMlp(y)
// for x [rows, hidden], plus adapters, with gradients to x, the weights and the
// adapters. Plain: of several nodes; fused: one, which rounds alike except
// where it adds in a different order.
at::Tensor PlainTransformerBlock(const at::Tensor& x,
                                 const TransformerBlockWeights& weights,
                                 const TransformerBlockOptions& options);

// Whether FusedTransformerBlock supports x: float32, bfloat16 or float16 on the
// CPU.
bool CanFuseTransformerBlock(const at::Tensor& x);

// Keeps x and, in one piece of memory, q, k, v, the attention's output, y, gate
// and up for backward, which overwrites them, so it runs only once, and
// recomputes the rest.
at::Tensor FusedTransformerBlock(const at::Tensor& x,
                                 const TransformerBlockWeights& weights,
                                 const TransformerBlockOptions& options);

// All keys and values so far, [batch, L, kv_heads * head_dim], with any strides
// in the first two dimensions.
struct CachedKeyValue {
  at::Tensor k;
  at::Tensor v;
};
// Appends k and v [batch * T, kv_heads * head_dim] of new tokens to a cache.
using AppendKeyValue =
    std::function<CachedKeyValue(const at::Tensor& k, const at::Tensor& v)>;

// The same for x [batch * T, hidden], the last T of L positions, without
// gradients. rope_table then has those positions' rows, or one row per row of
// x. first: see CachedAttention.
at::Tensor CachedTransformerBlock(const at::Tensor& x,
                                  const TransformerBlockWeights& weights,
                                  const TransformerBlockOptions& options,
                                  const AppendKeyValue& append,
                                  const at::Tensor& first = {});

// What a block allocates: on the CPU the fused one, with its matrices'
// gradients in a sink; the plain one for types that it doesn't support and on
// GPUs, with SwiGLU or an activation that takes no more.
OperatorMemory PlanTransformerBlock(const TransformerBlockShape& shape);
// The plain one in any case.
OperatorMemory PlanPlainTransformerBlock(const TransformerBlockShape& shape);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_LAYERS_TRANSFORMER_BLOCK_H_
