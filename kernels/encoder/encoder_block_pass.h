// SPDX-License-Identifier: Apache-2.0
//
// Forward and backward of a fused encoder block on one group of sequences, on
// float32 memory, single-threaded.
#ifndef CAPSTAN_KERNELS_ENCODER_ENCODER_BLOCK_PASS_H_
#define CAPSTAN_KERNELS_ENCODER_ENCODER_BLOCK_PASS_H_

#include <array>
#include <cstdint>
#include <vector>

#include "kernels/encoder/encoder_block.h"
#include "kernels/encoder/encoder_block_memory.h"

namespace capstan::kernels {

// Common to all groups.
struct EncoderPass {
  EncoderPass(const EncoderDims& dims, float* kept)
      : dims(dims), kept(dims, kept) {}

  const EncoderDims& dims;
  const EncoderKept kept;
  const EncoderRows* rows = nullptr;
  const float* x = nullptr;
  std::array<const float*, kEncoderWeights> weights = {};
  float eps = 0.0f;
  // Dropout: see dropout.h.
  float factor = 1.0f;
  uint16_t threshold = 0;
  const int64_t* samples = nullptr;
  std::vector<uint64_t> score_keys;  // one a head
  uint64_t output_key = 0, inner_key = 0, fed_key = 0;
};

// out: [queries, width], of all groups.
void ForwardGroup(const EncoderPass& pass, int64_t group,
                  const EncoderForwardSpace& space, float* out);

// One per weight; each group adds its part.
using EncoderGradients = std::array<float*, kEncoderWeights>;

// d_out: [queries, width], dx: [rows, width], of all groups. Overwrites what
// forward kept.
void BackwardGroup(const EncoderPass& pass, int64_t group, const float* d_out,
                   const EncoderBackwardSpace& space, float* dx,
                   const EncoderGradients& gradients);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_ENCODER_ENCODER_BLOCK_PASS_H_
