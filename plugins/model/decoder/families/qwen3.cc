// SPDX-License-Identifier: Apache-2.0
//
// Qwen 3 (Yang et al., 2025): norms of each head of queries and keys.
#include "plugins/model/decoder/families/reading.h"
#include "plugins/model/decoder/family.h"

namespace capstan::decoder::qwen3 {

CAPSTAN_READS_MODEL_TYPE(kModelType, "qwen3");

void Read(ConfigKeys& keys, DecoderConfig* c) {
  c->num_key_value_heads = 32;
  c->head_dim = 128;
  c->max_position_embeddings = 32768;
  ReadSizes(keys, c);
  keys.Only("hidden_act", "silu", "silu");
  c->qkv_bias = c->output_bias = keys.Bool("attention_bias", false);
  c->query_key_norm = kernels::QueryKeyNorm::kHead;
  c->ropes = {ReadRope(keys, *c)};
  ReadUpperWindows(keys, c);
}

constexpr Family kFamily = {kModelType, "Qwen3ForCausalLM", &Read};
const RegisterFamily registered(kFamily);

}  // namespace capstan::decoder::qwen3
