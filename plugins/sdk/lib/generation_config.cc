// SPDX-License-Identifier: Apache-2.0
#include "plugins/sdk/lib/generation_config.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/status.h"
#include "plugins/sdk/token_model.h"

namespace capstan {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kFile[] = "generation_config.json";

void Read(JsonKeys& keys, const char* key, absl::optional<int64_t>* out) {
  if (keys.Find(key) != nullptr) *out = keys.Int(key, 0);
}
void Read(JsonKeys& keys, const char* key, absl::optional<double>* out) {
  if (keys.Find(key) != nullptr) *out = keys.Double(key, 0.0);
}
void Read(JsonKeys& keys, const char* key, absl::optional<bool>* out) {
  if (keys.Find(key) != nullptr) *out = keys.Bool(key, false);
}

void Read(JsonKeys& keys, const char* key, std::vector<int64_t>* out) {
  const Json* const value = keys.Find(key);
  if (value == nullptr) return;
  for (const Json& one : value->is_array() ? *value : Json::array({*value})) {
    const absl::optional<int64_t> id = JsonInteger(one);
    if (!id.has_value()) return keys.Fail(key, "must hold token ids", *value);
    out->push_back(*id);
  }
}

void Read(JsonKeys& keys, const char* key, std::vector<std::string>* out) {
  const Json* const value = keys.Find(key);
  if (value == nullptr) return;
  for (const Json& one : value->is_array() ? *value : Json::array({*value})) {
    if (!one.is_string()) return keys.Fail(key, "must hold texts", *value);
    out->push_back(one);
  }
}

void ReadBeams(JsonKeys& keys, BeamSettings* beams) {
  beams->beams = keys.Int("num_beams", 1);
  if (beams->beams < 1) keys.Fail("num_beams", "must be 1 or more");
  beams->length_penalty = keys.Double("length_penalty", 1.0);
  const Json* const early = keys.Find("early_stopping");
  if (early == nullptr) return;
  if (*early == Json("never")) {
    beams->end = BeamsEnd::kCannotImprove;
  } else if (early->is_boolean()) {
    beams->end =
        early->get<bool>() ? BeamsEnd::kOnceFull : BeamsEnd::kUnlikelyToImprove;
  } else {
    keys.Fail("early_stopping", "must be true, false or \"never\"", *early);
  }
}

// Keys without a counterpart, and the value with which each does nothing.
std::vector<std::string> Ignored(const JsonKeys& keys) {
  static const auto* const neutral =
      new std::vector<std::pair<const char*, Json>>{
          {"bad_words_ids", nullptr},
          {"constraints", nullptr},
          {"diversity_penalty", 0.0},
          {"dola_layers", nullptr},
          {"epsilon_cutoff", 0.0},
          {"eta_cutoff", 0.0},
          {"exponential_decay_length_penalty", nullptr},
          {"force_words_ids", nullptr},
          {"forced_bos_token_id", nullptr},
          {"forced_eos_token_id", nullptr},
          {"guidance_scale", 1.0},
          {"max_time", nullptr},
          {"min_length", 0},
          {"num_beam_groups", 1},
          {"penalty_alpha", nullptr},
          {"sequence_bias", nullptr},
          {"token_healing", false},
          {"top_h", nullptr},
          {"typical_p", 1.0},
          {"watermarking_config", nullptr},
      };
  std::vector<std::string> ignored;
  for (const auto& [key, nothing] : *neutral) {
    const Json* const value = keys.Find(key);
    if (value != nullptr && *value != nothing) ignored.push_back(key);
  }
  return ignored;
}

}  // namespace

absl::StatusOr<GenerationConfig> ParseGenerationConfig(absl::string_view text) {
  GenerationConfig config;
  if (text.empty()) return config;
  CAPSTAN_ASSIGN_OR_RETURN(const Json json, ParseObject(kFile, text));
  JsonKeys keys(kFile, json);
  Read(keys, "do_sample", &config.do_sample);
  Read(keys, "temperature", &config.temperature);
  Read(keys, "top_p", &config.top_p);
  Read(keys, "min_p", &config.min_p);
  Read(keys, "repetition_penalty", &config.repetition_penalty);
  Read(keys, "top_k", &config.top_k);
  Read(keys, "no_repeat_ngram_size", &config.no_repeat_ngram_size);
  Read(keys, "max_new_tokens", &config.max_new_tokens);
  Read(keys, "min_new_tokens", &config.min_new_tokens);
  Read(keys, "suppress_tokens", &config.suppress_tokens);
  Read(keys, "begin_suppress_tokens", &config.begin_suppress_tokens);
  Read(keys, "stop_strings", &config.stop_strings);
  ReadBeams(keys, &config.beams);
  config.ignored = Ignored(keys);
  CAPSTAN_RETURN_IF_ERROR(keys.status());
  return config;
}

absl::StatusOr<GenerationConfig> GenerationConfigOf(const TokenModel& model) {
  return ParseGenerationConfig(model.generation_config());
}

}  // namespace capstan
