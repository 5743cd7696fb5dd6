// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_KERNELS_OPTIMIZER_MUON_H_
#define CAPSTAN_KERNELS_OPTIMIZER_MUON_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kernels/optimizer/orthogonalize.h"

namespace capstan::kernels {

// What the learning rate is multiplied by for a matrix of `rows` x `columns`
// (out x in).
enum class MuonRate {
  kOriginal,       // sqrt(max(1, rows / columns)), Jordan et al., 2024
  kMatchRmsAdamW,  // 0.2 sqrt(max(rows, columns)), Liu et al., "Muon is
                   // Scalable for LLM Training", 2025, section 2.2
};

struct MuonOptions {
  double learning_rate = 0.0;
  MuonRate rate = MuonRate::kOriginal;
  double momentum = 0.95;
  bool nesterov = true;
  double weight_decay = 0.0;
  double beta2 = 0.95;  // of `row_moment`
  double gradient_scale = 1.0;
  NewtonSchulz newton_schulz;
};

// Of one matrix, or of a stack of them one behind another, each treated alone.
// 1-D, contiguous and on one device; `parameter` and `momentum` are float32 and
// updated in place.
struct MuonBuffers {
  int64_t rows = 0, columns = 0;
  at::Tensor gradient;  // float32, bfloat16 or float16
  at::Tensor parameter;
  at::Tensor momentum;
  // Undefined: plain Muon. Else NorMuon's second moments, one float32 a row.
  at::Tensor row_moment;
  at::Tensor working;  // undefined, bfloat16 or float16
  // Undefined, or a float32 scalar on that device that also multiplies
  // gradients. If it isn't finite, nothing is written.
  at::Tensor device_scale;
};

// One step of Muon (Jordan et al., 2024; the operations of torch.optim.Muon):
//   g = gradient * gradient_scale * device_scale
//   m += (1 - momentum) * (g - m)
//   u = Orthogonalize(nesterov ? g + momentum * (m - g) : m)
//   p = p * (1 - lr * weight_decay) - lr * rate * u
// and with `row_moment` v (NorMuon, Li et al., 2025, algorithm 1), before p:
//   v = beta2 * v + (1 - beta2) * mean of each row of u^2
//   w = u / (sqrt(v) + 1e-10), row by row
//   u = w * (norm of u / norm of w)
// so that all rows move alike, and the matrix as far as with Muon.
// `working`, if defined, becomes p in its own dtype. On the CPU with products
// in float32, bits depend on no buffer's place.
void MuonStep(const MuonOptions& options, const MuonBuffers& buffers);

// The same by LibTorch's operators, which GPUs use: exposed for tests.
void MuonByLibTorch(const MuonOptions& options, const MuonBuffers& buffers);

// The bytes that MuonStep holds at most beside its buffers, whose parameter has
// `numel` elements in matrices of rows x columns.
int64_t MuonWorkspace(const NewtonSchulz& options, int64_t numel, int64_t rows,
                      int64_t columns, bool on_gpu);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_OPTIMIZER_MUON_H_
