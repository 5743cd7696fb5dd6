// SPDX-License-Identifier: Apache-2.0
//
// Phi-3 and Phi-4 (Abdin et al., 2024): one matrix for queries, keys and
// values, one for gate and up; a part of each head may rotate.
#include <vector>

#include "plugins/model/decoder/families/reading.h"
#include "plugins/model/decoder/family.h"

namespace capstan::decoder::phi3 {

CAPSTAN_READS_MODEL_TYPE(kModelType, "phi3");

constexpr DecoderNames kNames = HuggingFaceNamesWith(
    {{kQuery, "self_attn.qkv_proj"}, {kGate, "mlp.gate_up_proj"}});

void Read(ConfigKeys& keys, DecoderConfig* c) {
  c->max_position_embeddings = 4096;
  c->rms_norm_eps = 1e-5;
  c->bos_token_id = 1;
  c->eos_token_id = 32000;
  ReadSizes(keys, c);
  keys.Only("hidden_act", "silu", "silu");
  c->names = &kNames;
  c->fused = true;
  RopeReading reading;
  reading.partial = true;
  reading.trained_positions = 4096;
  reading.yarn_is_longrope = true;
  c->ropes = {ReadRope(keys, *c, reading)};
  ReadWindow(keys, 0, std::vector<bool>(c->num_hidden_layers, true), c);
}

constexpr Family kFamily = {kModelType, "Phi3ForCausalLM", &Read};
const RegisterFamily registered(kFamily);

}  // namespace capstan::decoder::phi3
