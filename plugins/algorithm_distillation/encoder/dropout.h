// SPDX-License-Identifier: Apache-2.0
//
// Dropout (Srivastava et al., "Dropout", 2014) whose draws depend only on seed,
// sample, layer, location in the layer and offset in the sample.
#ifndef CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_ENCODER_DROPOUT_H_
#define CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_ENCODER_DROPOUT_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace capstan::kernels {

// The draws of a run.
struct DropoutDraws {
  double rate = 0.0;  // in [0, 1)
  uint64_t seed = 0;
  at::Tensor samples;  // [B] int64 on x's device; undefined: nothing is dropped
  bool active() const { return rate > 0.0 && samples.defined(); }

  // On the CPU 16 bits decide each number: a rate of 0.1 is 6554 / 65536 =
  // 0.100006, and kept numbers are divided by exactly 1 - that.
  uint16_t threshold() const;
  float factor() const;
};

// A location in a layer.
enum class DropoutPlace { kAttention, kOutput, kInner, kFeedForward };

// `head`: for kAttention.
uint64_t DropoutKey(uint64_t seed, int layer, DropoutPlace place, int head = 0);

// Row t of a sample, `width` numbers, uses the groups of 16 bits from t *
// DropoutGroups(width) on.
inline int64_t DropoutGroups(int64_t width) { return (width + 15) / 16; }
// The first group for row i of a head's causal scores (i + 1 numbers).
inline int64_t DropoutTriangle(int64_t i) {
  const int64_t whole = i / 16, rest = i % 16;
  return 8 * whole * (whole + 1) + rest * (whole + 1);
}

// Drops numbers of x [B * T, width], T rows per sample, with a gradient.
at::Tensor DropRows(const at::Tensor& x, const DropoutDraws& draws, int layer,
                    DropoutPlace place);

// The same for scores [B, H, T, T], row i with i + 1 valid numbers, or [B, H,
// 1, T] for one query per sample. max_length: at least T, the same in each
// call.
at::Tensor DropScores(const at::Tensor& x, const DropoutDraws& draws, int layer,
                      int64_t max_length);

}  // namespace capstan::kernels

#endif  // CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_ENCODER_DROPOUT_H_
