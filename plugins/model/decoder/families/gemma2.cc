// SPDX-License-Identifier: Apache-2.0
//
// Gemma 2 (Gemma Team, 2024): norms before and behind, soft-caps, windows in
// every other layer.
#include <utility>
#include <vector>

#include "plugins/model/decoder/families/gemma.h"
#include "plugins/model/decoder/families/reading.h"
#include "plugins/model/decoder/family.h"

namespace capstan::decoder::gemma2 {

CAPSTAN_READS_MODEL_TYPE(kModelType, "gemma2");

constexpr DecoderNames kNames = GemmaNames();

void Read(ConfigKeys& keys, DecoderConfig* c) {
  c->max_position_embeddings = 8192;
  ReadGemma(keys, c);
  c->names = &kNames;
  c->attention_softcap = ReadSoftcap("attn_logit_softcapping", 50.0, keys);
  c->logit_softcap = ReadSoftcap("final_logit_softcapping", 30.0, keys);
  c->ropes = {ReadRope(keys, *c)};
  std::vector<bool> sliding(c->num_hidden_layers);
  for (size_t i = 0; i < sliding.size(); ++i) sliding[i] = i % 2 == 0;
  ReadWindow(keys, 4096, ReadSliding(keys, *c, std::move(sliding)), c);
}

constexpr Family kFamily = {kModelType, "Gemma2ForCausalLM", &Read};
const RegisterFamily registered(kFamily);

}  // namespace capstan::decoder::gemma2
