// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/decoder/families/gemma.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "plugins/model/decoder/families/reading.h"

namespace capstan::decoder {

void ReadGemma(ConfigKeys& keys, DecoderConfig* c) {
  c->num_key_value_heads = 4;
  c->head_dim = 256;
  c->tie_word_embeddings = true;
  c->bos_token_id = 2;
  c->eos_token_id = 1;
  c->pad_token_id = 0;
  ReadSizes(keys, c);
  keys.Only("use_bidirectional_attention", false, false);
  ReadActivation(keys, "hidden_activation", "gelu_pytorch_tanh", c);
  c->norm_after = true;
  c->norm_plus_one = true;
  c->qkv_bias = c->output_bias = keys.Bool("attention_bias", false);
  c->embedding_scale = std::sqrt(static_cast<double>(c->hidden_size));
  const double scalar = keys.Double("query_pre_attn_scalar", 256.0);
  if (scalar > 0.0 && std::isfinite(scalar)) {
    c->attention_scale = 1.0 / std::sqrt(scalar);
  } else {
    keys.Fail("query_pre_attn_scalar",
              absl::StrCat("must be greater than 0, is ", scalar));
  }
}

double ReadSoftcap(const char* key, double otherwise, ConfigKeys& keys) {
  const double cap = keys.Double(key, keys.Has(key) ? 0.0 : otherwise);
  if (!(cap >= 0.0 && std::isfinite(cap))) {
    keys.Fail(key, absl::StrCat("must be 0 or greater, or null, is ", cap));
  }
  return cap;
}

}  // namespace capstan::decoder
