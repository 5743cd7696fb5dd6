// SPDX-License-Identifier: Apache-2.0
//
// Noise on embeddings in fine-tuning ("NEFTune", Jain et al., 2023, section 2).
#ifndef CAPSTAN_KERNELS_LOSS_EMBEDDING_NOISE_H_
#define CAPSTAN_KERNELS_LOSS_EMBEDDING_NOISE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "kernels/layers/row_positions.h"

namespace capstan::kernels {

// Draws depend only on key, sample, the token's position in it and channel.
struct EmbeddingNoise {
  uint64_t key = 0;    // of the run (base/random.h)
  at::Tensor samples;  // [batch] int64
  at::Tensor size;     // [batch] float32, from NoiseSize; undefined: no noise
  RowPositions positions;

  bool defined() const { return size.defined(); }
};

// [batch] float32: alpha / sqrt(L * hidden), with L a row's tokens up to the
// last one that is a target, so that padding doesn't count. targets: [batch, T]
// int64, those of the next token (TokenTargets).
at::Tensor NoiseSize(const at::Tensor& targets, double alpha, int64_t hidden);

// Adds to x [rows, hidden], in place and without autograd, numbers that are
// uniform in +-size of their sample, of which each has as many rows. samples
// and size are on x's device.
void AddNoise(const EmbeddingNoise& noise, at::Tensor& x);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_LOSS_EMBEDDING_NOISE_H_
