// SPDX-License-Identifier: Apache-2.0
//
// A layer of torch.nn.TransformerEncoder as in Vaswani et al., "Attention Is
// All You Need", 2017 (post-norm), causal, with GELU:
//  y = LayerNorm1(x + dropout(attention(x) Wout^T + bout))
//  LayerNorm2(y + dropout(dropout(gelu(y Wup^T + bup)) Wdown^T + bdown))
// with dropout on the softmax, too.
#ifndef CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_ENCODER_ENCODER_BLOCK_H_
#define CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_ENCODER_ENCODER_BLOCK_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <array>
#include <cstdint>
#include <vector>

#include "kernels/memory.h"
#include "plugins/algorithm_distillation/encoder/dropout.h"

namespace capstan::kernels {

// In the order of torch.nn.TransformerEncoderLayer; E: width, F: feed-forward.
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

// How the rows of x are divided into consecutive sequences.
struct EncoderRows : public torch::CustomClassHolder {
  // [B + 1]: sequence b is rows offsets[b] to offsets[b + 1] - 1.
  std::vector<int64_t> offsets;
  // [B] int64 on x's device: each sequence's last valid row of x. On the CPU,
  // its last row.
  at::Tensor last;
  int64_t batch() const { return static_cast<int64_t>(offsets.size()) - 1; }
  int64_t rows() const { return offsets.back(); }
  int64_t length(int64_t b) const { return offsets[b + 1] - offsets[b]; }
};

struct EncoderBlockOptions {
  c10::intrusive_ptr<const EncoderRows> rows;
  int64_t heads = 1;  // divide E
  double eps = 1e-5;
  // Whether only the sequences' last rows are computed, from all keys.
  bool last_only = false;
  DropoutDraws dropout;
  // This layer's index: layers have different dropout draws.
  int layer = 0;
  // Upper bound of all sequences' lengths, the same in each call.
  int64_t max_length = 0;
};

// x: [rows, E]. Returns [rows, E], or [B, E] if last_only, with gradients to x
// and weights. LibTorch's operators, for any device and floating dtype;
// sequences of one length. Dropout's factor isn't rounded to 16 bits.
at::Tensor PlainEncoderBlock(const at::Tensor& x,
                             const EncoderBlockWeights& weights,
                             const EncoderBlockOptions& options);

// Its rest behind the attention, whose output for the rows `x` is `mixed`; both
// [queries, E].
at::Tensor PlainEncoderRest(const at::Tensor& x, const at::Tensor& mixed,
                            const EncoderBlockWeights& weights,
                            const EncoderBlockOptions& options);

// Whether FusedEncoderBlock supports x and weights of the dtype and device of
// `like`: float32 on the CPU, E and F multiples of 16.
bool CanFuseEncoderBlock(const at::Tensor& like, int64_t width,
                         int64_t feed_forward);

// The same as one node, in groups of sequences that fit the cache. Backward
// overwrites what was kept, so it runs only once. Without gradients, it needs
// memory for a few sequences. Sequences don't affect each other's results.
at::Tensor FusedEncoderBlock(const at::Tensor& x,
                             const EncoderBlockWeights& weights,
                             const EncoderBlockOptions& options);

// The properties of a block that determine its memory: `batch`
// sequences of `length`.
struct EncoderBlockShape {
  int64_t batch = 0;
  int64_t length = 0;
  int64_t width = 0;
  int64_t feed_forward = 0;
  int64_t heads = 1;
  c10::ScalarType dtype = c10::ScalarType::Float;
  bool last_only = false;
  bool dropout = false;
  bool gpu = false;

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

// What FusedEncoderBlock allocates, exactly, if it supports the shape, else an
// estimate for PlainEncoderBlock from what LibTorch's operators save.
OperatorMemory PlanEncoderBlock(const EncoderBlockShape& s);

}  // namespace capstan::kernels

#endif  // CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_ENCODER_ENCODER_BLOCK_H_
