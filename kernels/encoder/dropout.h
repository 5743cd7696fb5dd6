// SPDX-License-Identifier: Apache-2.0
//
// Dropout (Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks
// from Overfitting", 2014) whose draws depend on the run's seed, the sample,
// the layer, the place in it and the number's own place in its sample, and on
// nothing else of the batch.
#ifndef CAPSTAN_KERNELS_ENCODER_DROPOUT_H_
#define CAPSTAN_KERNELS_ENCODER_DROPOUT_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace capstan {
namespace kernels {

// The run's part of it.
struct DropoutDraws {
  double rate = 0.0;  // in [0, 1)
  uint64_t seed = 0;
  at::Tensor samples;  // [B] int64 on x's device; undefined: nothing is dropped
  bool active() const { return rate > 0.0 && samples.defined(); }

  // On the CPU 16 bits decide about a number: a rate of 0.1 is 6554 / 65536 =
  // 0.100006, and what is kept is multiplied by exactly 1 over the rest.
  uint16_t threshold() const;
  float factor() const;
};

// A place in a layer.
enum class DropoutPlace { kAttention, kOutput, kInner, kFeedForward };

// `head`: of kAttention.
uint64_t DropoutKey(uint64_t seed, int layer, DropoutPlace place, int head = 0);

// Row t of a sample, `width` numbers, has the groups of 16 bits from
// t * DropoutGroups(width) on.
inline int64_t DropoutGroups(int64_t width) { return (width + 15) / 16; }
// Row i of a head's causal scores, i + 1 numbers, has those from here on.
inline int64_t DropoutTriangle(int64_t i) {
  const int64_t whole = i / 16, rest = i % 16;
  return 8 * whole * (whole + 1) + rest * (whole + 1);
}

// x [B * T, width], T rows a sample, with numbers dropped and a gradient.
at::Tensor DropRows(const at::Tensor& x, const DropoutDraws& draws, int layer,
                    DropoutPlace place);

// The same for scores [B, H, T, T] of which row i has i + 1 numbers that count,
// or, of a sample's one query, [B, H, 1, T]. max_length: the same in each call,
// at least T.
at::Tensor DropScores(const at::Tensor& x, const DropoutDraws& draws, int layer,
                      int64_t max_length);

}  // namespace kernels
}  // namespace capstan

#endif  // CAPSTAN_KERNELS_ENCODER_DROPOUT_H_
