// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_TRANSFORMER_HISTORY_LAYERS_H_
#define CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_TRANSFORMER_HISTORY_LAYERS_H_

#include <ATen/core/Tensor.h>

#include <vector>

#include "kernels/memory.h"
#include "plugins/algorithm_distillation/encoder/encoder_block.h"
#include "plugins/algorithm_distillation/history_model.h"
#include "plugins/algorithm_distillation/transformer/ad_transformer.h"

namespace capstan::ad_transformer {

// Embeds the tokens of histories: a linear layer on a transition's numbers, a
// learned vector for each queried state and marker, one for the token's type
// and one for its position. transitions [B, T, columns] and kinds [B, T] as in
// HistoryInput; `parameters` by EmbeddingParameter. first: [B] int64, the
// positions of the rows' first tokens; undefined: 0. Returns [B * T, E], 0 at
// padding. Uses LibTorch's operators.
at::Tensor PlainEmbedding(const Sizes& sizes, const at::Tensor& transitions,
                          const at::Tensor& kinds, const at::Tensor& first,
                          const std::vector<at::Tensor>& parameters);

// The same as one node, for float32 on the CPU, without padding: `rows` has the
// number of tokens of each row. Returns [rows, E].
at::Tensor FusedEmbedding(
    const Sizes& sizes, const at::Tensor& transitions, const at::Tensor& kinds,
    const c10::intrusive_ptr<const kernels::EncoderRows>& rows,
    const std::vector<at::Tensor>& parameters);

// What they allocate on the CPU for `rows` tokens (an estimate for the plain
// one); `gradients`: bytes of the parameters' gradients.
kernels::OperatorMemory PlanEmbedding(const Sizes& sizes, int64_t rows,
                                      c10::ScalarType dtype, bool fused,
                                      int64_t gradients);

// Keys and values of past tokens, for evaluation in context.
class KeysAndValues final : public HistoryCache {
 public:
  // Common to the layers of one call; n tokens per row.
  struct Step {
    int64_t tokens = 0;  // n
    int64_t keys = 0;    // of the longest row, including new ones
    at::Tensor first;    // [rows] int64: position of a row's first new token
    at::Tensor slots;    // [rows, n] int64: where its keys go
    at::Tensor unseen;   // [rows, 1, n, keys] bool
    at::Tensor last;     // [rows] int64: index in rows * n of the one read
  };

  KeysAndValues(int64_t rows, const Sizes& sizes, const at::TensorOptions& of);

  int64_t length(int64_t row) const override { return lengths_[row]; }
  void Clear(int64_t row) override { lengths_[row] = 0; }

  // For [rows, n] tokens, of which lengths [rows], on the CPU, are valid.
  Step Begin(const at::Tensor& lengths, int64_t n) const;
  // An encoder layer on x [rows * n, E]; stores its keys and values.
  at::Tensor Layer(const Step& step, int layer,
                   const kernels::EncoderBlockWeights& w, const at::Tensor& x);
  // Commits the tokens, except queries; kinds [rows, n] and lengths on the CPU.
  void End(const at::Tensor& kinds, const at::Tensor& lengths);

 private:
  int64_t rows() const { return static_cast<int64_t>(lengths_.size()); }

  const Sizes sizes_;
  std::vector<int64_t> lengths_;
  // One per layer, [rows, n_transit + 1, E]; the last position takes what isn't
  // valid.
  std::vector<at::Tensor> keys_, values_;
};

}  // namespace capstan::ad_transformer

#endif  // CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_TRANSFORMER_HISTORY_LAYERS_H_
