// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/llama/llama_weights.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace capstan {
namespace llama {

std::vector<std::string> UnitNames(const LlamaConfig& config) {
  std::vector<std::string> names = {"embed"};
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    names.push_back(absl::StrCat("layers.", i));
  }
  names.push_back("head");
  return names;
}

std::vector<ParameterSpec> ParameterSpecs(const LlamaConfig& c) {
  const int64_t hidden = c.hidden_size, ffn = c.intermediate_size;
  const int64_t q = c.num_attention_heads * c.head_dim;
  const int64_t kv = c.num_key_value_heads * c.head_dim;
  std::vector<ParameterSpec> specs;
  int unit = 0;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    specs.push_back({name + ".weight", std::move(shape), unit});
  };
  add(c.names->embedding, {c.vocab_size, hidden});
  // The gradient of rows is put where they came from.
  specs[0].read_in_backward = false;
  if (c.tie_word_embeddings) {
    specs[0].other_units = {static_cast<int>(c.num_hidden_layers) + 1};
  }
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    ++unit;
    const std::vector<int64_t> shapes[kLayerParameters] = {
        {hidden}, {q, hidden},   {kv, hidden},  {kv, hidden}, {hidden, q},
        {hidden}, {ffn, hidden}, {ffn, hidden}, {hidden, ffn}};
    for (int p = 0; p < kLayerParameters; ++p) {
      add(absl::StrCat(c.names->layers, i, ".", c.names->in_layer[p]),
          shapes[p]);
    }
  }
  ++unit;
  add(c.names->norm, {hidden});
  if (!c.tie_word_embeddings) add(c.names->head, {c.vocab_size, hidden});
  return specs;
}

bool IsUnused(const LlamaConfig& config, absl::string_view name) {
  return (absl::ConsumeSuffix(&name, ".weight") &&
          name == config.names->head) ||
         absl::EndsWith(name, ".rotary_emb.inv_freq");
}

}  // namespace llama
}  // namespace capstan
