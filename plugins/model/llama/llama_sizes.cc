// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/llama/llama_sizes.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"

namespace capstan::llama {
namespace {

void FillHeads(LlamaConfig* c, ConfigCheck* check) {
  const LlamaNames& names = *c->names;
  if (c->num_key_value_heads == 0) {
    c->num_key_value_heads = c->num_attention_heads;
  }
  if (c->head_dim != 0 || c->num_attention_heads < 1) return;
  if (c->hidden_size % c->num_attention_heads != 0) {
    const std::string otherwise =
        names.head_dim == nullptr ? ""
                                  : absl::StrCat(" (or give ", names.head_dim,
                                                 " for heads of another size)");
    check->Fail(names.hidden_size,
                absl::StrCat("must be divisible by ", names.num_attention_heads,
                             ", which is ", c->num_attention_heads, ", is ",
                             c->hidden_size, otherwise));
    return;
  }
  c->head_dim = c->hidden_size / c->num_attention_heads;
}

// In floating point, which doesn't overflow.
double ParameterCount(const LlamaConfig& c) {
  const double hidden = static_cast<double>(c.hidden_size);
  const double heads = 2.0 * (static_cast<double>(c.num_attention_heads) +
                              static_cast<double>(c.num_key_value_heads));
  const double layer =
      hidden * (heads * static_cast<double>(c.head_dim) +
                3.0 * static_cast<double>(c.intermediate_size));
  return static_cast<double>(c.num_hidden_layers) * layer +
         2.0 * hidden * static_cast<double>(c.vocab_size);
}

void CheckSizes(const LlamaConfig& c, ConfigCheck* check) {
  const LlamaNames& names = *c.names;
  check->Size(names.hidden_size, c.hidden_size);
  check->Size(names.intermediate_size, c.intermediate_size);
  check->Size(names.num_hidden_layers, c.num_hidden_layers,
              ConfigCheck::kMostLayers);
  check->Size(names.num_attention_heads, c.num_attention_heads);
  check->Size(names.num_key_value_heads, c.num_key_value_heads);
  check->Size(names.head_dim == nullptr ? names.hidden_size : names.head_dim,
              c.head_dim);
  check->Size("vocab_size", c.vocab_size);
  check->Size(names.max_position_embeddings, c.max_position_embeddings);
  check->Total(names.hidden_size, ParameterCount(c));
}

// Checks that heads can be rotated.
void CheckHeads(const LlamaConfig& c, ConfigCheck* check) {
  const LlamaNames& names = *c.names;
  if (c.num_attention_heads % c.num_key_value_heads != 0) {
    check->Fail(
        names.num_key_value_heads,
        absl::StrCat("must divide ", names.num_attention_heads, ", which is ",
                     c.num_attention_heads, ", is ", c.num_key_value_heads));
  }
  if (c.head_dim % 2 == 0) return;
  const std::string problem =
      absl::StrCat("must be even for the rotary embedding, is ", c.head_dim);
  if (names.head_dim != nullptr) {
    check->Fail(names.head_dim, problem);
  } else {
    check->Fail(names.hidden_size,
                absl::StrCat("over ", names.num_attention_heads, " ", problem));
  }
}

}  // namespace

absl::Status FinishSizes(LlamaConfig* config) {
  ConfigCheck check;
  FillHeads(config, &check);
  if (!check.ok()) return check.status();
  const LlamaConfig& c = *config;
  CheckSizes(c, &check);
  if (!check.ok()) return check.status();
  CheckHeads(c, &check);
  check.Positive("rms_norm_eps", c.rms_norm_eps);
  check.Positive("rope_theta", c.rope_theta);
  check.Positive(c.names->initializer_range, c.initializer_range);
  check.Token("bos_token_id", c.bos_token_id, c.vocab_size);
  check.Token("eos_token_id", c.eos_token_id, c.vocab_size);
  check.Token("pad_token_id", c.pad_token_id, c.vocab_size);
  check.Token("mask_token_id", c.mask_token_id, c.vocab_size);
  return check.status();
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
  // The gradient is scattered to the rows looked up.
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

absl::StatusOr<LlamaConfig> ReadFolder(const std::string& folder,
                                       void (*read)(ConfigKeys& keys,
                                                    LlamaConfig* c)) {
  std::string path = folder + "/config.json";
  CAPSTAN_ASSIGN_OR_RETURN(std::string text, ReadWholeFile(path));
  CAPSTAN_ASSIGN_OR_RETURN(const Json json, ParseObject(path, text));
  ConfigKeys keys(path, json);
  LlamaConfig config;
  read(keys, &config);
  CAPSTAN_RETURN_IF_ERROR(keys.status());
  CAPSTAN_RETURN_IF_ERROR(keys.FailIf(FinishSizes(&config)));
  config.source_config = std::move(text);
  path = folder + "/generation_config.json";
  absl::StatusOr<std::string> generation = ReadWholeFile(path);
  if (generation.ok()) {
    CAPSTAN_RETURN_IF_ERROR(ParseObject(path, *generation).status());
    config.source_generation_config = *std::move(generation);
  }
  return config;
}

Json SourceKeys(const LlamaConfig& config) {
  return config.source_config.empty() ? Json::object()
                                      : ParseJson<Json>(config.source_config);
}

absl::Status WriteConfigFiles(const LlamaConfig& c, Json json,
                              const std::string& folder,
                              c10::ScalarType dtype) {
  json["dtype"] = DtypeName(dtype);
  json["torch_dtype"] = DtypeName(dtype);
  Json generation = {{"_from_model_config", true}};
  if (!c.source_generation_config.empty()) {
    generation = ParseJson<Json>(c.source_generation_config);
  }
  // A folder's own ids are kept: there may be several.
  const auto keep_or_set = [](const char* key, absl::optional<int64_t> id,
                              Json* out) {
    if (out->contains(key)) return;
    (*out)[key] = id.has_value() ? Json(*id) : Json(nullptr);
  };
  for (Json* out : {&json, &generation}) {
    keep_or_set("bos_token_id", c.bos_token_id, out);
    keep_or_set("eos_token_id", c.eos_token_id, out);
    if (c.pad_token_id.has_value()) {
      keep_or_set("pad_token_id", c.pad_token_id, out);
    }
  }
  CAPSTAN_RETURN_IF_ERROR(
      WriteWholeFile(folder + "/config.json", json.dump(2) + "\n"));
  return WriteWholeFile(folder + "/generation_config.json",
                        generation.dump(2) + "\n");
}

}  // namespace capstan::llama
