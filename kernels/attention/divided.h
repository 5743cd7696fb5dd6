// SPDX-License-Identifier: Apache-2.0
//
// Attention that several ranks compute together, each for a part of the heads
// ("DeepSpeed Ulysses", Jacobs et al., 2023, section 3.1): what a rank has of
// all heads is exchanged for its heads of all rows, and back.
#ifndef CAPSTAN_KERNELS_ATTENTION_DIVIDED_H_
#define CAPSTAN_KERNELS_ATTENTION_DIVIDED_H_

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

#include "kernels/attention/attention.h"

namespace capstan::kernels {

// How the ranks exchange. Both are collective, and wait.
class HeadExchange {
 public:
  virtual ~HeadExchange();
  // Divides AttentionShape::heads and kv_heads.
  virtual int ranks() const = 0;
  // From x [rows of this rank, heads * head_dim] to [rows of the pass, heads /
  // ranks() * head_dim]: sequence by sequence, this rank's heads.
  virtual at::Tensor ToHeads(const at::Tensor& x) = 0;
  // The reverse.
  virtual at::Tensor ToRows(const at::Tensor& x) = 0;
};

// What forward keeps for backward: q, k, v and the result of this rank's heads.
using DividedKept = std::array<at::Tensor, 4>;

// As AttentionForward, of matrices of `rows` rows each, those of this rank.
// log_sum_exp: [rows of the pass * heads / ranks], of this rank's heads.
template <typename T>
void DividedAttentionForward(HeadExchange& exchange,
                             const AttentionShape& shape, int64_t rows,
                             const PackedRows* packing, const T* q, const T* k,
                             const T* v, T* out, float* log_sum_exp,
                             DividedKept* kept);

// As AttentionBackward; of `buffers`, q, k, v and out aren't read.
template <typename T>
void DividedAttentionBackward(HeadExchange& exchange,
                              const AttentionShape& shape, int64_t rows,
                              const PackedRows* packing,
                              const AttentionBackwardBuffers<T>& buffers,
                              const DividedKept& kept);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_ATTENTION_DIVIDED_H_
