// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_KERNELS_LAYERS_GATED_MLP_H_
#define CAPSTAN_KERNELS_LAYERS_GATED_MLP_H_

#include <ATen/core/Tensor.h>

#include <array>

#include "kernels/layers/adapter.h"
#include "kernels/layers/transformer_block_shape.h"

namespace capstan {
namespace kernels {

struct GatedMlpWeights {
  at::Tensor norm;                  // [hidden]
  at::Tensor gate, up;              // [intermediate, hidden]
  at::Tensor down;                  // [hidden, intermediate]
  std::array<Adapter, 3> adapters;  // of gate, up, down
};

// x + (silu(n Wgate^T) * (n Wup^T)) Wdown^T with n = RmsNorm(x), and with what
// adapters add to these products, for x [rows, hidden], with gradients to x,
// the weights and the adapters. Keeps x and the two projections for backward;
// makes the rest again.
at::Tensor GatedMlp(const at::Tensor& x, const GatedMlpWeights& weights,
                    double eps);

// What GatedMlp leaves on `ledger`: its output and what it keeps beside x.
void PlanGatedMlp(const TransformerBlockShape& s, MemoryLedger* ledger);
// From there on, with the output's gradient in the output's place: x and its
// gradient remain.
void PlanGatedMlpBackward(const TransformerBlockShape& s, MemoryLedger* ledger);

}  // namespace kernels
}  // namespace capstan

#endif  // CAPSTAN_KERNELS_LAYERS_GATED_MLP_H_
