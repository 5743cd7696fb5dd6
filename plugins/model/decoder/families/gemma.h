// SPDX-License-Identifier: Apache-2.0
//
// What Gemma 2 and 3 have in common.
#ifndef CAPSTAN_PLUGINS_MODEL_DECODER_FAMILIES_GEMMA_H_
#define CAPSTAN_PLUGINS_MODEL_DECODER_FAMILIES_GEMMA_H_

#include "plugins/model/common/config.h"
#include "plugins/model/decoder/decoder_config.h"

namespace capstan::decoder {

constexpr DecoderNames GemmaNames() {
  return HuggingFaceNamesWith({{kAttentionPostNorm, "post_attention_layernorm"},
                               {kMlpNorm, "pre_feedforward_layernorm"},
                               {kMlpPostNorm, "post_feedforward_layernorm"}});
}

// The sizes, norms before and behind with 1 + weight, GELU, scaled embeddings
// and scores.
void ReadGemma(ConfigKeys& keys, DecoderConfig* c);

// 0: none, as null is.
double ReadSoftcap(const char* key, double otherwise, ConfigKeys& keys);

}  // namespace capstan::decoder

#endif  // CAPSTAN_PLUGINS_MODEL_DECODER_FAMILIES_GEMMA_H_
