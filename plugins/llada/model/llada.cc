// SPDX-License-Identifier: Apache-2.0
#include "plugins/llada/model/llada.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "plugins/model/common/config.h"
#include "plugins/model/decoder/family.h"
#include "plugins/sdk/model_types.h"

namespace capstan::llada {
namespace {

using decoder::DecoderConfig;
using decoder::Json;

CAPSTAN_READS_MODEL_TYPE(kModelType, "llada");

// Switches of LLaDA's code, with the only value that this model supports. If
// one of the first group is absent, LLaDA's code assumes another value.
constexpr std::pair<const char*, const char*> kTexts[] = {
    {"model_type", kModelType},
    {"block_type", "llama"},
    {"layer_norm_type", "rms"},
    {"activation_type", "silu"},
};
constexpr std::pair<const char*, bool> kSwitches[] = {
    {"rope", true},
    {"include_bias", false},
};
// Switches that may be absent.
constexpr std::pair<const char*, bool> kOtherSwitches[] = {
    {"rope_full_precision", true},    {"alibi", false},
    {"include_qkv_bias", false},      {"bias_for_layer_norm", false},
    {"attention_layer_norm", false},  {"input_emb_norm", false},
    {"layer_norm_with_affine", true}, {"scale_logits", false},
    {"multi_query_attention", false},
};
constexpr const char* kDropouts[] = {"attention_dropout", "embedding_dropout",
                                     "residual_dropout"};

void RejectWhatIsMissingHere(ConfigKeys& keys) {
  for (const auto& [key, value] : kTexts) keys.Must(key, value);
  for (const auto& [key, value] : kSwitches) keys.Must(key, value);
  for (const auto& [key, value] : kOtherSwitches) keys.Only(key, value, value);
  for (const char* key : kDropouts) keys.Only(key, 0.0, 0);
  keys.Only("block_group_size", 1, 1);
  for (const char* key : {"clip_qkv", "rope_scaling"}) {
    const Json* found = keys.Find(key);
    if (found == nullptr) continue;
    keys.Fail(key,
              absl::StrCat(found->dump(), " is not implemented, only null"));
  }
  keys.RejectQuantized();
}

// The names of LLaDAModelLM (GSAI-ML/LLaDA-8B-Base).
constexpr decoder::DecoderNames kLladaNames = {
    "d_model",
    "mlp_hidden_size",
    "n_layers",
    "n_heads",
    "n_kv_heads",
    nullptr,
    "max_sequence_length",
    "init_std",
    "model.transformer.wte",
    "model.transformer.blocks.",
    {"attn_norm", "q_proj", "k_proj", "v_proj", nullptr, nullptr, "attn_out",
     nullptr, "ff_norm", nullptr, "ff_proj", "up_proj", "ff_out", nullptr},
    "model.transformer.ln_f",
    "model.transformer.ff_out",
};

// From the sizes in `config`, with defaults filled in. FieldError otherwise.
absl::StatusOr<DecoderConfig> ConfigFromSizes(const Config& config) {
  DecoderConfig c;
  c.names = &kLladaNames;
  c.causal = false;
  c.hidden_size = config.d_model();
  c.intermediate_size = config.mlp_hidden_size();
  c.num_hidden_layers = config.n_layers();
  c.num_attention_heads = config.n_heads();
  c.num_key_value_heads = config.n_kv_heads();
  c.vocab_size = config.vocab_size();
  c.max_position_embeddings = OrDefault(config.max_sequence_length(), 4096);
  c.rms_norm_eps = OrDefault(config.rms_norm_eps(), 1e-5);
  c.ropes[0].theta = OrDefault(config.rope_theta(), 500000.0);
  c.tie_word_embeddings = config.weight_tying();
  c.initializer_range = OrDefault(config.init_std(), 0.02);
  c.mask_token_id = config.has_mask_token_id() ? config.mask_token_id()
                                               : config.vocab_size() - 1;
  if (config.has_bos_token_id()) c.bos_token_id = config.bos_token_id();
  if (config.has_eos_token_id()) c.eos_token_id = config.eos_token_id();
  c.pad_token_id = c.eos_token_id;
  if (config.has_pad_token_id()) c.pad_token_id = config.pad_token_id();
  CAPSTAN_RETURN_IF_ERROR(decoder::FinishSizes(&c));
  return c;
}

// From a folder. An error names the file and the key. vocab_size is the number
// of rows of the embedding, which the folder calls embedding_size.
absl::StatusOr<DecoderConfig> ConfigFromFolder(const std::string& folder) {
  return decoder::ReadFolder(folder, [](ConfigKeys& keys,
                                        DecoderConfig* config) {
    RejectWhatIsMissingHere(keys);
    DecoderConfig& c = *config;
    c.names = &kLladaNames;
    c.causal = false;
    c.hidden_size = keys.Int("d_model", absl::nullopt);
    c.intermediate_size = keys.Int("mlp_hidden_size", absl::nullopt);
    c.num_hidden_layers = keys.Int("n_layers", absl::nullopt);
    c.num_attention_heads = keys.Int("n_heads", absl::nullopt);
    c.num_key_value_heads = keys.Int("n_kv_heads", 0);
    const int64_t tokens = keys.Int("vocab_size", absl::nullopt);
    c.vocab_size = keys.Int("embedding_size", tokens);
    if (c.vocab_size < tokens) {
      keys.Fail("embedding_size",
                absl::StrCat("must be at least vocab_size, which is ", tokens,
                             ", is ", c.vocab_size));
    }
    c.max_position_embeddings = keys.Int("max_sequence_length", absl::nullopt);
    c.rms_norm_eps = keys.Double("rms_norm_eps", 1e-5);
    c.ropes[0].theta = keys.Double("rope_theta", 10000.0);
    c.tie_word_embeddings = keys.Bool("weight_tying", true);
    c.initializer_range = keys.Double("init_std", 0.02);
    c.mask_token_id = keys.Int("mask_token_id", absl::nullopt);
    c.bos_token_id = keys.Token("bos_token_id");
    c.eos_token_id = keys.Token("eos_token_id");
    c.pad_token_id = keys.Token("pad_token_id");
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<Llada>> Llada::Create(const Config& config) {
  CAPSTAN_ASSIGN_OR_RETURN(
      decoder::DecoderCheckpoint checkpoint,
      decoder::MakeCheckpoint(config, &ConfigFromSizes, &ConfigFromFolder));
  return std::unique_ptr<Llada>(new Llada(std::move(checkpoint)));
}

absl::Status Llada::SaveConfig(const std::string& folder,
                               c10::ScalarType dtype) const {
  const DecoderConfig& c = config();
  Json json = decoder::SourceKeys(c);
  json["architectures"] = {"LLaDAModelLM"};
  for (const auto& [key, value] : kTexts) json[key] = value;
  json["d_model"] = c.hidden_size;
  json["mlp_hidden_size"] = c.intermediate_size;
  json["n_layers"] = c.num_hidden_layers;
  json["n_heads"] = c.num_attention_heads;
  json["n_kv_heads"] = c.num_key_value_heads;
  // Tokens, and rows for them: a folder's rows beyond its tokens are unchanged
  // unless the vocabulary has grown over them.
  if (json.value("embedding_size", Json()) != c.vocab_size) {
    json["vocab_size"] = c.vocab_size;
    json["embedding_size"] = c.vocab_size;
  }
  json["max_sequence_length"] = c.max_position_embeddings;
  json["rms_norm_eps"] = c.rms_norm_eps;
  json["rope_theta"] = c.ropes[0].theta;
  json["weight_tying"] = c.tie_word_embeddings;
  json["init_std"] = c.initializer_range;
  for (const auto& [key, value] : kSwitches) json[key] = value;
  for (const auto& [key, value] : kOtherSwitches) json[key] = value;
  for (const char* key : kDropouts) json[key] = 0.0;
  json["block_group_size"] = 1;
  json["mask_token_id"] = *c.mask_token_id;
  if (!c.pad_token_id.has_value()) json["pad_token_id"] = nullptr;
  json["use_cache"] = false;
  return decoder::WriteConfigFiles(c, std::move(json), folder, dtype);
}

}  // namespace capstan::llada
