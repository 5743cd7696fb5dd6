// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_KERNELS_ATTENTION_INPUT_H_
#define CAPSTAN_KERNELS_ATTENTION_INPUT_H_

#include <ATen/core/Tensor.h>

namespace capstan {
namespace kernels {

struct QueryKeyValue {
  at::Tensor q;  // [rows, heads * head_dim]
  at::Tensor k;  // [rows, kv_heads * head_dim]
  at::Tensor v;  // [rows, kv_heads * head_dim]
};

struct AttentionWeights {
  at::Tensor norm;     // [hidden]
  at::Tensor q, k, v;  // [heads * head_dim, hidden] each
};

// What a block's attention reads: n = RmsNorm(x), q = rope(n Wq^T),
// k = rope(n Wk^T), v = n Wv^T, with gradients to x and the weights. x: [rows,
// hidden]; rope_table: see ApplyRope. Keeps x for backward, but not n.
QueryKeyValue AttentionInput(const at::Tensor& x,
                             const AttentionWeights& weights, double eps,
                             const at::Tensor& rope_table);

}  // namespace kernels
}  // namespace capstan

#endif  // CAPSTAN_KERNELS_ATTENTION_INPUT_H_
