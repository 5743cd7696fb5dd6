// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/llama/llama.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "plugins/model/common/config.h"

namespace capstan::llama {
namespace {

// The rotation's base, from either form; fails for scaled ones.
double ReadRope(ConfigKeys& keys) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* rope = keys.Find(key);
    if (rope == nullptr) continue;
    if (!rope->is_object()) {
      keys.Fail(key, absl::StrCat("must be an object, is ", rope->dump()));
      continue;
    }
    for (const char* type : {"rope_type", "type"}) {
      const auto it = rope->find(type);
      if (it != rope->end() && *it != "default") {
        keys.Fail(
            absl::StrCat(key, ".", type),
            absl::StrCat(it->dump(), " is not implemented, only \"default\""));
      }
    }
    const auto partial = rope->find("partial_rotary_factor");
    if (partial != rope->end() && *partial != 1.0) {
      keys.Fail(absl::StrCat(key, ".partial_rotary_factor"),
                absl::StrCat(partial->dump(), " is not implemented, only 1"));
    }
    const auto theta = rope->find("rope_theta");
    if (theta == rope->end()) continue;
    if (theta->is_number()) return theta->get<double>();
    keys.Fail(absl::StrCat(key, ".rope_theta"),
              absl::StrCat("must be a number, is ", theta->dump()));
  }
  return keys.Double("rope_theta", 10000.0);
}

void RejectWhatIsMissingHere(ConfigKeys& keys) {
  const Json* type = keys.Find("model_type");
  if (type == nullptr || *type != "llama") {
    keys.Fail("model_type",
              absl::StrCat("must be \"llama\", is ",
                           type == nullptr ? "missing" : type->dump()));
  }
  keys.Only("hidden_act", "silu", "silu");
  keys.Only("attention_bias", false, false);
  keys.Only("mlp_bias", false, false);
  keys.Only("attention_dropout", 0.0, 0);
  keys.Only("partial_rotary_factor", 1.0, 1);
  keys.RejectQuantized();
}

// From the sizes in `config`, with defaults filled in. FieldError otherwise.
absl::StatusOr<LlamaConfig> ConfigFromSizes(const Config& config) {
  LlamaConfig c;
  c.hidden_size = config.hidden_size();
  c.intermediate_size = config.intermediate_size();
  c.num_hidden_layers = config.num_hidden_layers();
  c.num_attention_heads = config.num_attention_heads();
  c.num_key_value_heads = config.num_key_value_heads();
  c.head_dim = config.head_dim();
  c.vocab_size = config.vocab_size();
  c.max_position_embeddings = OrDefault(config.max_position_embeddings(), 2048);
  c.rms_norm_eps = OrDefault(config.rms_norm_eps(), 1e-5);
  c.rope_theta = OrDefault(config.rope_theta(), 10000.0);
  c.tie_word_embeddings =
      !config.has_tie_word_embeddings() || config.tie_word_embeddings();
  c.initializer_range = OrDefault(config.initializer_range(), 0.02);
  if (config.has_bos_token_id()) c.bos_token_id = config.bos_token_id();
  if (config.has_eos_token_id()) c.eos_token_id = config.eos_token_id();
  CAPSTAN_RETURN_IF_ERROR(FinishSizes(&c));
  return c;
}

}  // namespace

absl::StatusOr<LlamaConfig> ConfigFromFolder(const std::string& folder) {
  return ReadFolder(folder, [](ConfigKeys& keys, LlamaConfig* config) {
    RejectWhatIsMissingHere(keys);
    LlamaConfig& c = *config;
    // Defaults are those of transformers' LlamaConfig.
    c.hidden_size = keys.Int("hidden_size", absl::nullopt);
    c.intermediate_size = keys.Int("intermediate_size", absl::nullopt);
    c.num_hidden_layers = keys.Int("num_hidden_layers", absl::nullopt);
    c.num_attention_heads = keys.Int("num_attention_heads", absl::nullopt);
    c.num_key_value_heads = keys.Int("num_key_value_heads", 0);
    c.head_dim = keys.Int("head_dim", 0);
    c.vocab_size = keys.Int("vocab_size", absl::nullopt);
    c.max_position_embeddings = keys.Int("max_position_embeddings", 2048);
    c.rms_norm_eps = keys.Double("rms_norm_eps", 1e-6);
    c.rope_theta = ReadRope(keys);
    c.tie_word_embeddings = keys.Bool("tie_word_embeddings", false);
    c.initializer_range = keys.Double("initializer_range", 0.02);
    c.bos_token_id = keys.Token("bos_token_id");
    c.eos_token_id = keys.Token("eos_token_id");
  });
}

absl::Status Llama::SaveConfig(const std::string& folder,
                               c10::ScalarType dtype) const {
  const LlamaConfig& c = config();
  Json json = SourceKeys(c);
  json["architectures"] = {"LlamaForCausalLM"};
  json["model_type"] = "llama";
  json["hidden_size"] = c.hidden_size;
  json["intermediate_size"] = c.intermediate_size;
  json["num_hidden_layers"] = c.num_hidden_layers;
  json["num_attention_heads"] = c.num_attention_heads;
  json["num_key_value_heads"] = c.num_key_value_heads;
  json["head_dim"] = c.head_dim;
  json["vocab_size"] = c.vocab_size;
  json["max_position_embeddings"] = c.max_position_embeddings;
  json["rms_norm_eps"] = c.rms_norm_eps;
  json["rope_theta"] = c.rope_theta;
  json["rope_parameters"] = {{"rope_theta", c.rope_theta},
                             {"rope_type", "default"}};
  json["hidden_act"] = "silu";
  json["attention_bias"] = false;
  json["attention_dropout"] = 0.0;
  json["mlp_bias"] = false;
  json["tie_word_embeddings"] = c.tie_word_embeddings;
  json["initializer_range"] = c.initializer_range;
  json["use_cache"] = true;
  return WriteConfigFiles(c, std::move(json), folder, dtype);
}

absl::StatusOr<std::unique_ptr<Llama>> Llama::Create(const Config& config) {
  CAPSTAN_ASSIGN_OR_RETURN(
      LlamaCheckpoint checkpoint,
      MakeCheckpoint(config, &ConfigFromSizes, &ConfigFromFolder));
  return std::unique_ptr<Llama>(new Llama(std::move(checkpoint)));
}

}  // namespace capstan::llama
