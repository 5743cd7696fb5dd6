// SPDX-License-Identifier: Apache-2.0
//
// A layer of torch.nn.TransformerEncoder as Vaswani et al., "Attention Is All
// You Need", 2017, have it (norm behind the sum), causal, with GELU:
//   y = LayerNorm1(x + dropout(attention(x) Wout^T + bout))
//   LayerNorm2(y + dropout(dropout(gelu(y Wup^T + bup)) Wdown^T + bdown))
// with softmax's rows dropped as well.
#ifndef CAPSTAN_KERNELS_ENCODER_ENCODER_BLOCK_H_
#define CAPSTAN_KERNELS_ENCODER_ENCODER_BLOCK_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <array>
#include <cstdint>
#include <vector>

#include "kernels/encoder/dropout.h"

namespace capstan {
namespace kernels {

// As torch.nn.TransformerEncoderLayer orders them; E: width, F: feed-forward.
enum EncoderWeight {
  kInWeight,    // [3E, E]: query, key, value
  kInBias,      // [3E]
  kOutWeight,   // [E, E]
  kOutBias,     // [E]
  kUpWeight,    // [F, E]
  kUpBias,      // [F]
  kDownWeight,  // [E, F]
  kDownBias,    // [E]
  kNorm1Weight,
  kNorm1Bias,
  kNorm2Weight,
  kNorm2Bias,
  kEncoderWeights
};
using EncoderBlockWeights = std::array<at::Tensor, kEncoderWeights>;

// How the rows of x are divided among sequences, one behind the other.
struct EncoderRows : public torch::CustomClassHolder {
  // [B + 1]: sequence b is rows offsets[b] to offsets[b + 1] - 1.
  std::vector<int64_t> offsets;
  // [B] int64 on x's device: the row of x that is each sequence's last that
  // counts. On the CPU that of its last row.
  at::Tensor last;
  int64_t batch() const { return static_cast<int64_t>(offsets.size()) - 1; }
  int64_t rows() const { return offsets.back(); }
  int64_t length(int64_t b) const { return offsets[b + 1] - offsets[b]; }
};

struct EncoderBlockOptions {
  c10::intrusive_ptr<const EncoderRows> rows;
  int64_t heads = 1;  // divide E
  double eps = 1e-5;
  // Whether only the sequences' last rows are wanted: the others are of use as
  // keys and values alone.
  bool last_only = false;
  DropoutDraws dropout;
  // Of this layer: none of dropout's numbers is another layer's as well.
  int layer = 0;
  // Upper bound of any sequence's length, the same in each call.
  int64_t max_length = 0;
};

// x: [rows, E]. Returns [rows, E], or [B, E] if last_only, with gradients to x
// and weights. Of LibTorch's operators, for any device and floating dtype; the
// sequences must be alike in length. In 16 bits dropout's factor alone isn't
// rounded.
at::Tensor PlainEncoderBlock(const at::Tensor& x,
                             const EncoderBlockWeights& weights,
                             const EncoderBlockOptions& options);

// Whether FusedEncoderBlock can, for x and weights of the dtype and device of
// `like`: float32 on the CPU, E and F multiples of 16.
bool CanFuseEncoderBlock(const at::Tensor& like, int64_t width,
                         int64_t feed_forward);

// The same as one node, worked on in groups of sequences that the cache holds.
// What it keeps for backward is one piece of memory, which backward overwrites:
// it runs once; without gradients, the memory is that of a few sequences. A
// sequence's numbers don't depend on the others'.
at::Tensor FusedEncoderBlock(const at::Tensor& x,
                             const EncoderBlockWeights& weights,
                             const EncoderBlockOptions& options);

// Bytes that a fused block takes, for `batch` sequences of `length`.
struct EncoderBlockSizes {
  int64_t kept = 0;      // from forward to backward, beside x and the output
  int64_t forward = 0;   // while forward runs, beside these
  int64_t backward = 0;  // while backward runs, beside gradients
};
EncoderBlockSizes FusedEncoderBlockSizes(int64_t batch, int64_t length,
                                         int64_t width, int64_t feed_forward,
                                         int64_t heads, bool last_only,
                                         bool dropout);

}  // namespace kernels
}  // namespace capstan

#endif  // CAPSTAN_KERNELS_ENCODER_ENCODER_BLOCK_H_
