// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/llama/llama_weights.h"

#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace capstan {
namespace llama {
std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

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
  add("model.embed_tokens", {c.vocab_size, hidden});
  // The gradient of rows is put where they came from.
  specs[0].read_in_backward = false;
  if (c.tie_word_embeddings) {
    specs[0].other_units = {static_cast<int>(c.num_hidden_layers) + 1};
  }
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) {
    ++unit;
    const std::string layer = absl::StrCat("model.layers.", i, ".");
    add(layer + "input_layernorm", {hidden});
    add(layer + "self_attn.q_proj", {q, hidden});
    add(layer + "self_attn.k_proj", {kv, hidden});
    add(layer + "self_attn.v_proj", {kv, hidden});
    add(layer + "self_attn.o_proj", {hidden, q});
    add(layer + "post_attention_layernorm", {hidden});
    add(layer + "mlp.gate_proj", {ffn, hidden});
    add(layer + "mlp.up_proj", {ffn, hidden});
    add(layer + "mlp.down_proj", {hidden, ffn});
  }
  ++unit;
  add("model.norm", {hidden});
  if (!c.tie_word_embeddings) add("lm_head", {c.vocab_size, hidden});
  return specs;
}

absl::Status CheckWeights(const std::vector<ParameterSpec>& specs,
                          const SafetensorsReader& weights,
                          const std::string& folder) {
  std::set<std::string> known;
  for (const ParameterSpec& spec : specs) {
    known.insert(spec.name);
    const auto it = weights.tensors().find(spec.name);
    if (it == weights.tensors().end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(folder, ": the weights lack tensor '", spec.name,
                       "', which config.json asks for"));
    }
    const TensorEntry& entry = it->second;
    if (entry.shape != spec.shape) {
      return absl::InvalidArgumentError(
          absl::StrCat(entry.file, ": tensor '", spec.name, "' has the shape ",
                       ShapeText(entry.shape), ", but config.json makes it ",
                       ShapeText(spec.shape)));
    }
    if (entry.dtype != c10::ScalarType::Float &&
        entry.dtype != c10::ScalarType::Half &&
        entry.dtype != c10::ScalarType::BFloat16) {
      return absl::InvalidArgumentError(absl::StrCat(
          entry.file, ": tensor '", spec.name,
          "' must be F32, F16 or BF16, is ", c10::toString(entry.dtype)));
    }
  }
  for (const auto& [name, entry] : weights.tensors()) {
    if (known.count(name) > 0 || name == "lm_head.weight" ||
        // Constants that old versions of transformers saved.
        absl::EndsWith(name, ".rotary_emb.inv_freq")) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat(entry.file, ": tensor '", name,
                     "' has no place in the model that config.json describes"));
  }
  return absl::OkStatus();
}

}  // namespace llama
}  // namespace capstan
