// SPDX-License-Identifier: Apache-2.0
//
// A whole layer of a Llama-like model as one operator with its own backward.
#ifndef CAPSTAN_KERNELS_LAYERS_TRANSFORMER_BLOCK_H_
#define CAPSTAN_KERNELS_LAYERS_TRANSFORMER_BLOCK_H_

#include <ATen/core/Tensor.h>

#include "kernels/layers/block_parts.h"
#include "kernels/layers/weight.h"
#include "kernels/memory.h"

namespace capstan::kernels {

//  y = AttentionOutput(Attention(AttentionInput(x)), x),  GatedMlp(y)
// for x [rows, hidden], plus adapters, with gradients to x, the weights and the
// adapters; or, with options.cache, CachedAttention, without gradients: in
// training, of a prompt and of each token. By the best of the following forms.
at::Tensor TransformerBlock(const at::Tensor& x,
                            const TransformerBlockWeights& weights,
                            const TransformerBlockOptions& options);

// Of several nodes, for all that the others don't support.
at::Tensor PlainTransformerBlock(const at::Tensor& x,
                                 const TransformerBlockWeights& weights,
                                 const TransformerBlockOptions& options);

// Whether FusedTransformerBlock supports x: float32, bfloat16 or float16 on the
// CPU.
bool CanFuseTransformerBlock(const at::Tensor& x);

// Without a cache, as one node, which rounds as the plain block does except
// where it adds in a different order. Keeps x and, in one piece of memory, q,
// k, v, the attention's output, y and, unless RecomputesMlp(), gate and up for
// backward, which overwrites them, so it runs only once, and recomputes the
// rest.
at::Tensor FusedTransformerBlock(const at::Tensor& x,
                                 const TransformerBlockWeights& weights,
                                 const TransformerBlockOptions& options);

// With a cache, on the CPU: without autograd's nodes, in one piece of memory,
// with products that read each matrix once from where it lies (kernels/decode).
// For one new token a sequence, attention reads the cache as it lies; for more,
// as CachedAttention does.
at::Tensor DecodeBlock(const at::Tensor& x,
                       const TransformerBlockWeights& weights,
                       const TransformerBlockOptions& options);

// Whether DecodeBlock supports x: float32 on the CPU, without gradients.
bool CanDecode(const at::Tensor& x);

// What follows the last block, for such x: logits [rows, V] = RmsNorm(x)
// Whead^T, with a dense head of any type (mixed_linear.h).
at::Tensor DecodeHead(const at::Tensor& x, const at::Tensor& norm,
                      const Weight& head, double eps, bool plus_one);

// What a block allocates: on the CPU the fused one, with its matrices'
// gradients in a sink; the plain one for types that it doesn't support and on
// GPUs, with SwiGLU or an activation that takes no more.
OperatorMemory PlanTransformerBlock(const TransformerBlockShape& shape);
// The plain one in any case.
OperatorMemory PlanPlainTransformerBlock(const TransformerBlockShape& shape);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_LAYERS_TRANSFORMER_BLOCK_H_
