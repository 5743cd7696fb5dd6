// SPDX-License-Identifier: Apache-2.0
//
// A whole layer of a Llama-like model as one operator with its own backward.
#ifndef CAPSTAN_KERNELS_LAYERS_TRANSFORMER_BLOCK_H_
#define CAPSTAN_KERNELS_LAYERS_TRANSFORMER_BLOCK_H_

#include <ATen/core/Tensor.h>

#include <array>

#include "base/gradient_sink.h"
#include "kernels/attention/attention.h"
#include "kernels/layers/block_parts.h"
#include "kernels/memory.h"

namespace capstan::kernels {

struct TransformerBlockWeights {
  AttentionWeights attention;
  at::Tensor output;  // [hidden, heads * head_dim]
  GatedMlpWeights mlp;
  Adapter output_adapter;
};

// TransformerBlock's inputs besides tensors.
struct TransformerBlockOptions {
  AttentionShape shape;
  double eps = 0.0;
  at::Tensor rope_table;  // see ApplyRope
  // The documents in each row; rope_table then has each token's own position.
  Packing packing;
  // Receives the gradients of the matrices; null: new tensors. Outlives the
  // graph.
  GradientSink* sink = nullptr;
  // The sink's indices of q, k, v, output, gate, up, down.
  std::array<int, 7> parameters = {};
};

//  y = x + Attention(AttentionInput(x)) Woutput^T,  GatedMlp(y)
// for x [rows, hidden], plus adapters, with gradients to x, the weights and the
// adapters. Plain: of several nodes; fused: one, which rounds alike except
// where it adds in a different order.
at::Tensor PlainTransformerBlock(const at::Tensor& x,
                                 const TransformerBlockWeights& weights,
                                 const TransformerBlockOptions& options);

// Whether FusedTransformerBlock supports x: float32 on the CPU.
bool CanFuseTransformerBlock(const at::Tensor& x);

// Keeps x and, in one piece of memory, q, k, v, the attention's output, y, gate
// and up for backward, which overwrites them, so it runs only once, and
// recomputes the rest.
at::Tensor FusedTransformerBlock(const at::Tensor& x,
                                 const TransformerBlockWeights& weights,
                                 const TransformerBlockOptions& options);

// What a block allocates on the CPU: the fused one for float32, with its
// matrices' gradients in a sink; the plain one for other types.
OperatorMemory PlanTransformerBlock(const TransformerBlockShape& shape);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_LAYERS_TRANSFORMER_BLOCK_H_
