// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_KERNELS_LAYERS_GATED_MLP_H_
#define CAPSTAN_KERNELS_LAYERS_GATED_MLP_H_

#include <ATen/core/Tensor.h>

#include <array>

#include "kernels/layers/adapter.h"
#include "kernels/layers/transformer_block_shape.h"

namespace capstan::kernels {

struct GatedMlpWeights {
  at::Tensor norm;                  // [hidden]
  at::Tensor gate, up;              // [intermediate, hidden]
  at::Tensor down;                  // [hidden, intermediate]
  std::array<Adapter, 3> adapters;  // of gate, up, down
};

// x + (silu(n Wgate^T) * (n Wup^T)) Wdown^T with n = RmsNorm(x), plus adapters,
// for x [rows, hidden], with gradients to x, the weights and the adapters.
// Keeps x and the two projections for backward, which recomputes the rest.
at::Tensor GatedMlp(const at::Tensor& x, const GatedMlpWeights& weights,
                    double eps);

// Adds to `ledger` what GatedMlp leaves: its output and what it keeps besides
// x.
void PlanGatedMlp(const TransformerBlockShape& s, MemoryLedger* ledger);
// Continues from there, with the output's gradient in place of the output:
// leaves x and its gradient.
void PlanGatedMlpBackward(const TransformerBlockShape& s, MemoryLedger* ledger);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_LAYERS_GATED_MLP_H_
