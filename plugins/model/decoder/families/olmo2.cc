// SPDX-License-Identifier: Apache-2.0
//
// OLMo 2 (OLMo Team, 2024): norms only behind attention and MLP, and of all
// queries and all keys.
#include "plugins/model/decoder/families/reading.h"
#include "plugins/model/decoder/family.h"

namespace capstan::decoder::olmo2 {

CAPSTAN_READS_MODEL_TYPE(kModelType, "olmo2");

constexpr DecoderNames kNames =
    HuggingFaceNamesWith({{kAttentionPostNorm, "post_attention_layernorm"},
                          {kMlpPostNorm, "post_feedforward_layernorm"}});

void Read(ConfigKeys& keys, DecoderConfig* c) {
  c->max_position_embeddings = 2048;
  c->rms_norm_eps = 1e-5;
  c->eos_token_id = 50279;
  ReadSizes(keys, c);
  keys.Only("hidden_act", "silu", "silu");
  c->names = &kNames;
  c->norm_before = false;
  c->norm_after = true;
  c->query_key_norm = kernels::QueryKeyNorm::kRow;
  c->qkv_bias = c->output_bias = keys.Bool("attention_bias", false);
  c->ropes = {ReadRope(keys, *c)};
}

constexpr Family kFamily = {kModelType, "Olmo2ForCausalLM", &Read};
const RegisterFamily registered(kFamily);

}  // namespace capstan::decoder::olmo2
