// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/llama/llama.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "plugins/model/common/config.h"
#include "plugins/model/decoder/family.h"

namespace capstan::llama {
namespace {

using decoder::DecoderConfig;

constexpr char kModelType[] = "llama";

// From the sizes in `config`, with defaults filled in. FieldError otherwise.
absl::StatusOr<DecoderConfig> ConfigFromSizes(const Config& config) {
  DecoderConfig c;
  c.hidden_size = config.hidden_size();
  c.intermediate_size = config.intermediate_size();
  c.num_hidden_layers = config.num_hidden_layers();
  c.num_attention_heads = config.num_attention_heads();
  c.num_key_value_heads = config.num_key_value_heads();
  c.head_dim = config.head_dim();
  c.vocab_size = config.vocab_size();
  c.max_position_embeddings = OrDefault(config.max_position_embeddings(), 2048);
  c.rms_norm_eps = OrDefault(config.rms_norm_eps(), 1e-5);
  c.ropes[0].theta = OrDefault(config.rope_theta(), 10000.0);
  c.tie_word_embeddings =
      !config.has_tie_word_embeddings() || config.tie_word_embeddings();
  c.initializer_range = OrDefault(config.initializer_range(), 0.02);
  if (config.has_bos_token_id()) c.bos_token_id = config.bos_token_id();
  if (config.has_eos_token_id()) c.eos_token_id = config.eos_token_id();
  CAPSTAN_RETURN_IF_ERROR(decoder::FinishSizes(&c));
  return c;
}

}  // namespace

absl::StatusOr<DecoderConfig> ConfigFromFolder(const std::string& folder) {
  CAPSTAN_ASSIGN_OR_RETURN(DecoderConfig config, decoder::ReadFolder(folder));
  const std::string type = config.family->model_type;
  if (type == kModelType) return config;
  return absl::InvalidArgumentError(
      absl::StrCat(folder, "/config.json: model_type must be \"", kModelType,
                   "\", is \"", type, "\", which capstan.decoder reads"));
}

absl::Status Llama::SaveConfig(const std::string& folder,
                               c10::ScalarType dtype) const {
  const DecoderConfig& c = config();
  if (!c.source_config.empty()) return DecoderModel::SaveConfig(folder, dtype);
  decoder::Json json;
  json["architectures"] = {"LlamaForCausalLM"};
  json["model_type"] = kModelType;
  json["hidden_size"] = c.hidden_size;
  json["intermediate_size"] = c.intermediate_size;
  json["num_hidden_layers"] = c.num_hidden_layers;
  json["num_attention_heads"] = c.num_attention_heads;
  json["num_key_value_heads"] = c.num_key_value_heads;
  json["head_dim"] = c.head_dim;
  json["vocab_size"] = c.vocab_size;
  json["max_position_embeddings"] = c.max_position_embeddings;
  json["rms_norm_eps"] = c.rms_norm_eps;
  json["rope_theta"] = c.ropes[0].theta;
  json["rope_parameters"] = {{"rope_theta", c.ropes[0].theta},
                             {"rope_type", "default"}};
  json["hidden_act"] = "silu";
  json["attention_bias"] = false;
  json["attention_dropout"] = 0.0;
  json["mlp_bias"] = false;
  json["tie_word_embeddings"] = c.tie_word_embeddings;
  json["initializer_range"] = c.initializer_range;
  json["use_cache"] = true;
  return decoder::WriteConfigFiles(c, std::move(json), folder, dtype);
}

absl::StatusOr<std::unique_ptr<Llama>> Llama::Create(const Config& config) {
  CAPSTAN_ASSIGN_OR_RETURN(
      decoder::DecoderCheckpoint checkpoint,
      decoder::MakeCheckpoint(config, &ConfigFromSizes, &ConfigFromFolder));
  return std::unique_ptr<Llama>(new Llama(std::move(checkpoint)));
}

}  // namespace capstan::llama
