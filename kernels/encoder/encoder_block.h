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
#include "kernels/memory.h"

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

// A block on the CPU as far as its memory depends on it: `batch` sequences of
// `length`.
struct EncoderBlockShape {
  int64_t batch = 0;
  int64_t length = 0;
  int64_t width = 0;
  int64_t feed_forward = 0;
  int64_t heads = 1;
  c10::ScalarType dtype = c10::ScalarType::Float;
  bool last_only = false;
  bool dropout = false;

  bool fused() const;
  int64_t rows() const { return batch * length; }
  int64_t queries() const { return last_only ? batch : rows(); }
  // Numbers in an EncoderBlockWeights.
  int64_t weights() const {
    return (4 * width + 9) * width + (2 * width + 1) * feed_forward;
  }
  // Bytes of [rows, width].
  int64_t Bytes(int64_t rows, int64_t width) const {
    return rows * width * ElementBytes(dtype);
  }
};

// What FusedEncoderBlock allocates if it can, to the byte, or an estimate for
// PlainEncoderBlock, from what LibTorch's operators save.
OperatorMemory PlanEncoderBlock(const EncoderBlockShape& s);

}  // namespace kernels
}  // namespace capstan

#endif  // CAPSTAN_KERNELS_ENCODER_ENCODER_BLOCK_H_
