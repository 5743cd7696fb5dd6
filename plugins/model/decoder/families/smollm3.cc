// SPDX-License-Identifier: Apache-2.0
//
// SmolLM 3 (Hugging Face, 2025): a Llama with layers without rope.
#include <utility>
#include <vector>

#include "plugins/model/decoder/families/reading.h"
#include "plugins/model/decoder/family.h"

namespace capstan::decoder::smollm3 {

CAPSTAN_READS_MODEL_TYPE(kModelType, "smollm3");

// no_rope_layers holds 1 for a layer with rope; by default each
// no_rope_layer_interval-th has none.
std::vector<bool> ReadRotated(ConfigKeys& keys, const DecoderConfig& c) {
  const int64_t interval = keys.Int("no_rope_layer_interval", 4);
  if (interval < 1) keys.Fail("no_rope_layer_interval", "must be at least 1");
  if (!keys.status().ok()) return {};
  std::vector<bool> rotated(c.num_hidden_layers);
  for (size_t i = 0; i < rotated.size(); ++i) {
    rotated[i] = (static_cast<int64_t>(i) + 1) % interval != 0;
  }
  const ConfigJson* given = keys.Find("no_rope_layers");
  if (given == nullptr) return rotated;
  if (!given->is_array() || given->size() < rotated.size()) {
    keys.Fail("no_rope_layers", "must be a list with a number for each layer");
    return rotated;
  }
  for (size_t i = 0; i < rotated.size(); ++i) rotated[i] = (*given)[i] != 0;
  return rotated;
}

void Read(ConfigKeys& keys, DecoderConfig* c) {
  c->num_key_value_heads = 4;
  c->max_position_embeddings = 32768;
  c->tie_word_embeddings = true;
  c->bos_token_id = 128000;
  c->eos_token_id = 128001;
  ReadSizes(keys, c);
  keys.Only("hidden_act", "silu", "silu");
  c->qkv_bias = c->output_bias = keys.Bool("attention_bias", false);
  c->mlp_bias = keys.Bool("mlp_bias", false);
  RopeReading reading;
  reading.theta = 2000000.0;
  c->ropes = {ReadRope(keys, *c, reading)};
  const std::vector<bool> rotated = ReadRotated(keys, *c);
  std::vector<bool> sliding(rotated.size());
  c->layer_kinds.resize(rotated.size());
  for (size_t i = 0; i < rotated.size(); ++i) {
    c->layer_kinds[i].rope = rotated[i] ? 0 : -1;
    sliding[i] = !rotated[i];
  }
  if (keys.Bool("use_sliding_window", false)) {
    ReadWindow(keys, 0, ReadSliding(keys, *c, std::move(sliding)), c);
  }
}

constexpr Family kFamily = {kModelType, "SmolLM3ForCausalLM", &Read};
const RegisterFamily registered(kFamily);

}  // namespace capstan::decoder::smollm3
