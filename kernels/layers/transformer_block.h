// SPDX-License-Identifier: Apache-2.0
//
// A whole layer of a Llama-like model as one operator with a backward of its
// own.
#ifndef CAPSTAN_KERNELS_LAYERS_TRANSFORMER_BLOCK_H_
#define CAPSTAN_KERNELS_LAYERS_TRANSFORMER_BLOCK_H_

#include <ATen/core/Tensor.h>

#include <array>

#include "base/gradient_sink.h"
#include "kernels/attention/attention.h"
#include "kernels/layers/attention_input.h"
#include "kernels/layers/gated_mlp.h"
#include "kernels/layers/transformer_block_shape.h"
#include "kernels/memory.h"

namespace capstan {
namespace kernels {

struct TransformerBlockWeights {
  AttentionWeights attention;
  at::Tensor output;  // [hidden, heads * head_dim]
  GatedMlpWeights mlp;
  Adapter output_adapter;
};

// What TransformerBlock needs to know beside tensors.
struct TransformerBlockOptions {
  AttentionShape shape;
  double eps = 0.0;
  at::Tensor rope_table;  // see ApplyRope
  // The documents in each row, with rope_table of each token's own position.
  Packing packing;
  // Where the gradients of the matrices go; null: into tensors of their own.
  // Outlives the graph.
  GradientSink* sink = nullptr;
  // The sink's names of q, k, v, output, gate, up, down.
  std::array<int, 7> parameters = {};
};

//   y = x + Attention(AttentionInput(x)) Woutput^T,  GatedMlp(y)
// for x [rows, hidden], with what adapters add to the products, and gradients
// to x, the weights and the adapters: of the parts, made of several nodes,
// PlainTransformerBlock; of one node, FusedTransformerBlock. The two round
// alike, but where the fused one adds in another order.
at::Tensor PlainTransformerBlock(const at::Tensor& x,
                                 const TransformerBlockWeights& weights,
                                 const TransformerBlockOptions& options);

// Whether FusedTransformerBlock can run on x: float32 on the CPU.
bool CanFuseTransformerBlock(const at::Tensor& x);

// Keeps x and, in one piece of memory, q, k, v, the attention's output, y, gate
// and up for backward, which overwrites them and so runs once; makes the rest
// again. Temporaries of forward and backward are one piece of memory each.
at::Tensor FusedTransformerBlock(const at::Tensor& x,
                                 const TransformerBlockWeights& weights,
                                 const TransformerBlockOptions& options);

// What a block allocates on the CPU: float32 the fused one, whose matrices'
// gradients go to a sink's places, other types the plain one.
OperatorMemory PlanTransformerBlock(const TransformerBlockShape& shape);

}  // namespace kernels
}  // namespace capstan

#endif  // CAPSTAN_KERNELS_LAYERS_TRANSFORMER_BLOCK_H_
