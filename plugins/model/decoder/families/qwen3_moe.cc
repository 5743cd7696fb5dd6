// SPDX-License-Identifier: Apache-2.0
//
// Qwen 3 with a mixture of experts in some or all layers (Yang et al., 2025).
#include <vector>

#include "base/json.h"
#include "plugins/model/decoder/families/reading.h"
#include "plugins/model/decoder/family.h"

namespace capstan::decoder::qwen3_moe {

CAPSTAN_READS_MODEL_TYPE(kModelType, "qwen3_moe");

// Which layers have experts: by default all.
void ReadExperts(ConfigKeys& keys, DecoderConfig* c) {
  Experts& experts = c->experts;
  experts.count = keys.Int("num_experts", keys.Int("num_local_experts", 128));
  experts.chosen = keys.Int("num_experts_per_tok", 8);
  experts.intermediate_size = keys.Int("moe_intermediate_size", 768);
  experts.normalise = keys.Bool("norm_topk_prob", false);
  const double coefficient = keys.Double("router_aux_loss_coef", 0.001);
  if (keys.Bool("output_router_logits", false)) {
    experts.loss_coefficient = coefficient;
  }
  const int64_t step = keys.Int("decoder_sparse_step", 1);
  if (step < 1) keys.Fail("decoder_sparse_step", "must be at least 1");
  if (!keys.status().ok()) return;
  c->layer_kinds.resize(c->num_hidden_layers);
  for (int64_t i = 0; i < c->num_hidden_layers; ++i) {
    c->layer_kinds[i].experts = experts.count > 0 && (i + 1) % step == 0;
  }
  const ConfigJson* plain = keys.Find("mlp_only_layers");
  if (plain == nullptr) return;
  for (const ConfigJson& layer : *plain) {
    const absl::optional<int64_t> i = JsonInteger(layer);
    if (!i.has_value() || *i < 0 || *i >= c->num_hidden_layers) {
      keys.Fail("mlp_only_layers", "must hold numbers of layers", *plain);
      return;
    }
    c->layer_kinds[*i].experts = false;
  }
}

void Read(ConfigKeys& keys, DecoderConfig* c) {
  c->num_key_value_heads = 4;
  c->max_position_embeddings = 32768;
  ReadSizes(keys, c);
  keys.Only("hidden_act", "silu", "silu");
  c->qkv_bias = c->output_bias = keys.Bool("attention_bias", false);
  c->query_key_norm = kernels::QueryKeyNorm::kHead;
  c->ropes = {ReadRope(keys, *c)};
  ReadExperts(keys, c);
  if (keys.Bool("use_sliding_window", false)) {
    ReadWindow(keys, 4096, std::vector<bool>(c->num_hidden_layers, true), c);
  }
}

constexpr Family kFamily = {kModelType, "Qwen3MoeForCausalLM", &Read};
const RegisterFamily registered(kFamily);

}  // namespace capstan::decoder::qwen3_moe
