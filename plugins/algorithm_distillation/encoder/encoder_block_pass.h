// SPDX-License-Identifier: Apache-2.0
//
// The memory layout of a fused encoder block, and its forward and backward on
// one group of sequences, on float32 memory, single-threaded.
#ifndef CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_ENCODER_ENCODER_BLOCK_PASS_H_
#define CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_ENCODER_ENCODER_BLOCK_PASS_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "kernels/memory.h"
#include "plugins/algorithm_distillation/encoder/dropout.h"
#include "plugins/algorithm_distillation/encoder/encoder_block.h"

namespace capstan::kernels {

// The sizes of a block. Queries are the rows that it outputs.
struct EncoderDims {
  // Floats per group of sequences, so that it fits the L2 cache.
  static constexpr int64_t kGroupFloats = 192 * 1024;

  EncoderDims(const std::vector<int64_t>& offsets, int64_t width,
              int64_t feed_forward, int64_t heads, bool last_only, bool dropout)
      : width(width),
        inner(feed_forward),
        heads(heads),
        last_only(last_only),
        dropout(dropout),
        batch(static_cast<int64_t>(offsets.size()) - 1),
        rows(offsets.back()) {
    const int64_t row = 8 * width + 2 * inner;
    const int64_t most = std::max<int64_t>(kGroupFloats / row, 1);
    score_groups.reserve(batch + 1);
    score_groups.push_back(0);
    groups.push_back(0);
    for (int64_t b = 0; b < batch; ++b) {
      const int64_t length = offsets[b + 1] - offsets[b];
      longest = std::max(longest, length);
      score_groups.push_back(score_groups.back() + heads * HeadGroups(length));
      if (b > groups.back() && offsets[b + 1] - offsets[groups.back()] > most) {
        groups.push_back(b);
      }
    }
    groups.push_back(batch);
    for (size_t g = 0; g + 1 < groups.size(); ++g) {
      group_rows =
          std::max(group_rows, offsets[groups[g + 1]] - offsets[groups[g]]);
    }
  }
  // Groups of 16 dropout bits for one head's scores.
  int64_t HeadGroups(int64_t length) const {
    return last_only ? DropoutGroups(length) : DropoutTriangle(length);
  }

  int64_t width, inner, heads;
  bool last_only, dropout;
  int64_t batch, rows;
  int64_t queries = last_only ? batch : rows;
  int64_t head_dim = width / heads;
  // Floats of keys, values and (not last_only) queries.
  int64_t projected = last_only ? 2 * width : 3 * width;
  std::vector<int64_t> groups;        // first sequence of each group, and batch
  std::vector<int64_t> score_groups;  // [batch + 1]: begins by sequence
  int64_t longest = 0;
  int64_t group_rows = 0;  // of the largest group
};

// What forward leaves for backward. With a null base it only counts.
struct EncoderKept {
  EncoderKept(const EncoderDims& d, float* base) : parts(base) {
    projected = parts.Take(d.rows * d.projected);
    q = parts.Take(d.last_only ? d.queries * d.width : 0);
    log_sum_exp = parts.Take(d.queries * d.heads);
    mixed = parts.Take(d.queries * d.width);
    inner = parts.Take(d.queries * d.inner);
    for (Norm& norm : norms) {
      norm.sum = parts.Take(d.queries * d.width);
      norm.mean = parts.Take(d.queries);
      norm.rstd = parts.Take(d.queries);
    }
    const auto bits = [&](int64_t groups) {
      float* const part = parts.Take(d.dropout ? (groups + 1) / 2 : 0);
      return d.dropout ? reinterpret_cast<uint16_t*>(part) : nullptr;
    };
    keep_scores = bits(d.score_groups.back());
    keep_inner = bits(d.queries * DropoutGroups(d.inner));
    for (Norm& norm : norms) {
      norm.keep = bits(d.queries * DropoutGroups(d.width));
    }
  }
  // The sum that a LayerNorm has normalised, and its second term's dropout.
  struct Norm {
    float *sum, *mean, *rstd;
    uint16_t* keep;
  };
  MemoryParts parts;
  float *projected, *q, *log_sum_exp, *mixed, *inner;
  uint16_t *keep_scores, *keep_inner;
  Norm norms[2];
};

// Floats that attention of one head needs.
int64_t EncoderAttentionSpace(int64_t keys, int64_t head_dim);

// One thread's temporaries in forward.
struct EncoderForwardSpace {
  EncoderForwardSpace(const EncoderDims& d, float* base) : parts(base) {
    const int64_t queries = std::min(d.group_rows, d.queries);
    y = parts.Take(queries * d.width);
    activation = parts.Take(queries * d.inner);
    x_query = parts.Take(d.last_only ? queries * d.width : 0);
    attention = parts.Take(EncoderAttentionSpace(d.longest, d.head_dim));
  }
  MemoryParts parts;
  float *y, *activation, *x_query, *attention;
};

// And in backward.
struct EncoderBackwardSpace {
  EncoderBackwardSpace(const EncoderDims& d, float* base) : parts(base) {
    const int64_t queries = std::min(d.group_rows, d.queries);
    y = parts.Take(queries * d.width);
    d_y = parts.Take(queries * d.width);
    d_product = parts.Take(queries * d.width);
    d_mixed = parts.Take(queries * d.width);
    d_inner = parts.Take(queries * d.inner);
    d_projected = parts.Take(d.group_rows * d.projected);
    d_q = parts.Take(d.last_only ? queries * d.width : 0);
    x_query = parts.Take(d.last_only ? queries * d.width : 0);
    attention = parts.Take(EncoderAttentionSpace(d.longest, d.head_dim));
  }
  MemoryParts parts;
  float *y, *d_y, *d_product, *d_mixed, *d_inner, *d_projected, *d_q, *x_query,
      *attention;
};

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

#endif  // CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_ENCODER_ENCODER_BLOCK_PASS_H_
