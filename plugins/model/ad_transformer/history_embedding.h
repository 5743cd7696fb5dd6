// SPDX-License-Identifier: Apache-2.0
//
// The tokens of histories as vectors: a linear layer on a transition's numbers,
// a learned vector for each queried state and marker, one for the token's type
// and one for its position.
#ifndef CAPSTAN_PLUGINS_MODEL_AD_TRANSFORMER_HISTORY_EMBEDDING_H_
#define CAPSTAN_PLUGINS_MODEL_AD_TRANSFORMER_HISTORY_EMBEDDING_H_

#include <ATen/core/Tensor.h>

#include <vector>

#include "kernels/encoder/encoder_block.h"
#include "plugins/model/ad_transformer/ad_transformer_config.h"

namespace capstan {
namespace ad_transformer {

// transitions [B, T, 6] and kinds [B, T] as in HistoryInput; `parameters` by
// EmbeddingParameter. first: [B] int64, the positions of the rows' first
// tokens; undefined: 0. Returns [B * T, E], padding being 0. Of LibTorch's
// operators.
at::Tensor PlainEmbedding(const Sizes& sizes, const at::Tensor& transitions,
                          const at::Tensor& kinds, const at::Tensor& first,
                          const std::vector<at::Tensor>& parameters);

// The same as one node, for float32 on the CPU, without padding: `rows` says
// how many tokens of each row there are. Returns [rows, E].
at::Tensor FusedEmbedding(
    const Sizes& sizes, const at::Tensor& transitions, const at::Tensor& kinds,
    const c10::intrusive_ptr<const kernels::EncoderRows>& rows,
    const std::vector<at::Tensor>& parameters);

}  // namespace ad_transformer
}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_MODEL_AD_TRANSFORMER_HISTORY_EMBEDDING_H_
