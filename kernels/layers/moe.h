// SPDX-License-Identifier: Apache-2.0
//
// A mixture of experts in place of a block's MLP (Shazeer et al., "Outrageously
// Large Neural Networks", 2017; as in Qwen3-MoE): each token goes to the top_k
// experts that a linear router prefers.
#ifndef CAPSTAN_KERNELS_LAYERS_MOE_H_
#define CAPSTAN_KERNELS_LAYERS_MOE_H_

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <vector>

#include "kernels/context/gradient_sink.h"
#include "kernels/layers/linear.h"
#include "kernels/layers/weight.h"
#include "kernels/memory.h"

namespace capstan::kernels {

// One expert: (silu(n Wgate^T) * (n Wup^T)) Wdown^T.
struct ExpertWeights {
  Weight gate, up;  // [intermediate, hidden]
  Weight down;      // [hidden, intermediate]
  std::array<Adapter, 3> adapters = {};
};

struct MoeWeights {
  at::Tensor norm;    // [hidden]
  at::Tensor router;  // [experts, hidden], dense
  std::vector<ExpertWeights> experts;
};

struct MoeOptions {
  double eps = 0.0;  // of the norm
  int64_t top_k = 1;
  // Whether the weights of a token's experts are divided by their sum.
  bool normalise = true;
  bool sums_probability = true;  // whether MoeResult has it
  // [rows] float32 on x's device, 1 for the rows that MoeResult's sums are of
  // and 0 for others; undefined: of all.
  at::Tensor counted;
  // As TransformerBlockOptions; the indices of each expert's gate, up and down.
  GradientSink* sink = nullptr;
  std::vector<std::array<int, 3>> parameters;
};

struct MoeResult {
  at::Tensor output;  // [rows, hidden]: x + the experts' weighted sum
  // [experts] float32 each. Over the counted rows: the sum of the router's
  // probabilities, with a gradient; and how many rows chose the expert (a row
  // chooses top_k), without. Experts' load; and the auxiliary loss of "Switch
  // Transformers" (Fedus et al., 2021, section 2.2) over all layers' rows, as
  // transformers' load_balancing_loss_func computes it:
  //   experts * sum(chosen / rows * probability / rows)
  // with `chosen`, `probability` and `rows` summed over the layers.
  at::Tensor probability;
  at::Tensor chosen;
};

// On GPUs of compute capability 9 and 10 in bfloat16 all experts' products are
// grouped (grouped_experts.h), and the host waits for nothing. In other dtypes,
// on other GPUs, and with adapters, packed matrices or products in 8 bits it
// waits once for how many rows each expert has, and issues products expert by
// expert.
//
// n = RmsNorm(x); p = softmax(n Wrouter^T) in float32; each row's output is x +
// the sum over its top_k experts e of p[e] (or p[e] / their sum) * expert_e(n),
// with gradients to x, the weights and the adapters. x: [rows, hidden].
MoeResult MoeMlp(const at::Tensor& x, const MoeWeights& weights,
                 const MoeOptions& options);

// The properties that determine its memory.
struct MoeShape {
  int64_t rows = 0;
  int64_t hidden = 0;
  int64_t intermediate = 0;  // of an expert
  int64_t experts = 0;
  int64_t top_k = 1;
  c10::ScalarType dtype = c10::ScalarType::Float;
  bool trained = true;
  std::array<AdapterShape, 3> adapters = {};
  bool grouped = false;  // products may be grouped: the larger need of both
};
OperatorMemory PlanMoeMlp(const MoeShape& shape);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_LAYERS_MOE_H_
