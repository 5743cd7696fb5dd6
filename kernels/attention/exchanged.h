// SPDX-License-Identifier: Apache-2.0
//
// Attention over other rows than the layers': of all ranks, for a part of the
// heads ("DeepSpeed Ulysses", Jacobs et al., 2023, section 3.1) or for a part
// of the queries ("The Llama 3 Herd of Models", 2024, section 3.3.2), or of
// texts whose common beginnings the layers compute once.
#ifndef CAPSTAN_KERNELS_ATTENTION_EXCHANGED_H_
#define CAPSTAN_KERNELS_ATTENTION_EXCHANGED_H_

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <memory>

#include "kernels/attention/attention.h"

namespace capstan::kernels {

// Keys and values of all ranks, for the queries of this one. Its functions are
// collective, and wait.
class KeyExchange {
 public:
  virtual ~KeyExchange();
  // This rank's positions of each sequence, in the order of its rows.
  virtual c10::ArrayRef<RowChunk> chunks() const = 0;
  // From this rank's x [rows, width] to that of all, [all rows, width]:
  // sequence by sequence, in the order of positions.
  virtual at::Tensor Gather(const at::Tensor& x) = 0;
  // Its backward: this rank's rows of the sum of dy [all rows, width] over the
  // ranks, in float32, rounded once.
  virtual at::Tensor SumOwn(const at::Tensor& dy) = 0;
};

class AttentionExchange {
 public:
  virtual ~AttentionExchange();
  // How many ranks divide AttentionShape::heads and kv_heads. If more than one,
  // the others are collective, and wait.
  virtual int ranks() const { return 1; }
  // Of this rank's heads.
  AttentionShape PartOf(AttentionShape shape) const;
  // If not null, attention computes all heads by it, and the rest isn't used.
  virtual KeyExchange* keys() { return nullptr; }
  // From the layers' x [rows, heads * head_dim] to attention's, [rows of the
  // pass, heads / ranks() * head_dim]: sequence by sequence, this rank's heads.
  virtual at::Tensor ToAttention(const at::Tensor& x) = 0;
  // The reverse.
  virtual at::Tensor FromAttention(const at::Tensor& x) = 0;
  // Their backwards: from the gradient of the result to that of x. By default
  // each is the other, as of permutations.
  virtual at::Tensor ToAttentionBackward(const at::Tensor& dy) {
    return FromAttention(dy);
  }
  virtual at::Tensor FromAttentionBackward(const at::Tensor& dy) {
    return ToAttention(dy);
  }
};

// What forward keeps for backward, of attention's rows: q, k, v, the result and
// the logarithms of sums, as AttentionForward's. With keys() nothing.
using ExchangedKept = std::array<at::Tensor, 5>;

// As AttentionForward, of matrices of the layers' `rows` rows each. log_sum_exp
// is written with keys() alone.
template <typename T>
void ExchangedAttentionForward(AttentionExchange& exchange,
                               const AttentionShape& shape, int64_t rows,
                               const PackedRows* packing, const T* q,
                               const T* k, const T* v, T* out,
                               float* log_sum_exp, ExchangedKept* kept);

// As AttentionBackward. Without keys() only d_out of `buffers` is read.
template <typename T>
void ExchangedAttentionBackward(AttentionExchange& exchange,
                                const AttentionShape& shape, int64_t rows,
                                const PackedRows* packing,
                                const AttentionBackwardBuffers<T>& buffers,
                                const ExchangedKept& kept);

// As Attention, of the layers' q, k and v, by nodes of its own: on any device.
at::Tensor ExchangedAttention(
    const std::shared_ptr<AttentionExchange>& exchange, const at::Tensor& q,
    const at::Tensor& k, const at::Tensor& v, const AttentionShape& shape,
    const Packing& packing, const SharedMasks& masks);

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_ATTENTION_EXCHANGED_H_
