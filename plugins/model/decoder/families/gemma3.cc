// SPDX-License-Identifier: Apache-2.0
//
// Gemma 3 (Gemma Team, 2025): text models, and the text part of those that also
// see images.
#include <utility>
#include <vector>

#include "plugins/model/decoder/families/gemma.h"
#include "plugins/model/decoder/families/reading.h"
#include "plugins/model/decoder/family.h"

namespace capstan::decoder::gemma3 {

CAPSTAN_READS_MODEL_TYPE(kTextType, "gemma3_text");
CAPSTAN_READS_MODEL_TYPE(kWholeType, "gemma3");

constexpr DecoderNames kNames = GemmaNames();

// Layers with a window have a rope of their own, the second one.
void ReadLayers(ConfigKeys& keys, DecoderConfig* c) {
  RopeReading whole;
  whole.theta = 1000000.0;
  whole.layers = "full_attention";
  RopeReading window;
  window.layers = "sliding_attention";
  window.theta_key = "rope_local_base_freq";
  window.scaling_key = nullptr;
  c->ropes = {ReadRope(keys, *c, whole), ReadRope(keys, *c, window)};
  // Files of transformers 5 may have it with an underscore.
  const int64_t pattern = keys.Int("sliding_window_pattern",
                                   keys.Int("_sliding_window_pattern", 6));
  if (pattern < 1) keys.Fail("sliding_window_pattern", "must be at least 1");
  if (!keys.status().ok()) return;
  std::vector<bool> sliding(c->num_hidden_layers);
  for (size_t i = 0; i < sliding.size(); ++i) {
    sliding[i] = (static_cast<int64_t>(i) + 1) % pattern != 0;
  }
  sliding = ReadSliding(keys, *c, std::move(sliding));
  c->layer_kinds.resize(sliding.size());
  for (size_t i = 0; i < sliding.size(); ++i) {
    c->layer_kinds[i].rope = sliding[i] ? 1 : 0;
  }
  ReadWindow(keys, 4096, sliding, c);
}

void Read(ConfigKeys& keys, DecoderConfig* c) {
  c->vocab_size = 262208;
  c->hidden_size = 2304;
  c->intermediate_size = 9216;
  c->num_hidden_layers = 26;
  c->num_attention_heads = 8;
  c->max_position_embeddings = 131072;
  ReadGemma(keys, c);
  c->names = &kNames;
  c->query_key_norm = kernels::QueryKeyNorm::kHead;
  c->attention_softcap = ReadSoftcap("attn_logit_softcapping", 0.0, keys);
  c->logit_softcap = ReadSoftcap("final_logit_softcapping", 0.0, keys);
  ReadLayers(keys, c);
}

// In the files of a model that sees images, too, which are as transformers 4 or
// as transformers 5 names tensors.
void ReadWhole(ConfigKeys& keys, DecoderConfig* c) {
  Read(keys, c);
  c->other_parts = {"vision_tower.", "multi_modal_projector.",
                    "model.vision_tower.", "model.multi_modal_projector.",
                    "language_model.lm_head."};
  c->file_names = {
      {"model.", {"language_model.model.", "model.language_model."}}};
}

// text_config, as a Gemma3ForCausalLM's own config.json would say it: what is
// saved has no part that sees.
Json TextPart(const Json& json) {
  const auto text = json.find("text_config");
  Json part = text != json.end() && text->is_object() ? *text : Json::object();
  part["model_type"] = kTextType;
  part["architectures"] = {"Gemma3ForCausalLM"};
  for (const char* key :
       {"tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id",
        "quantization_config", "transformers_version"}) {
    if (json.contains(key) && !part.contains(key)) part[key] = json[key];
  }
  return part;
}

constexpr Family kText = {kTextType, "Gemma3ForCausalLM", &Read};
constexpr Family kWhole = {kWholeType, "Gemma3ForCausalLM", &ReadWhole,
                           &TextPart};
const RegisterFamily registered_text(kText);
const RegisterFamily registered_whole(kWhole);

}  // namespace capstan::decoder::gemma3
