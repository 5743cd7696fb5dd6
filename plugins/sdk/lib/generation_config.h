// SPDX-License-Identifier: Apache-2.0
//
// What a model's generation_config.json says about sampling (transformers'
// GenerationConfig, whose keys have the same names).
#ifndef CAPSTAN_PLUGINS_SDK_LIB_GENERATION_CONFIG_H_
#define CAPSTAN_PLUGINS_SDK_LIB_GENERATION_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "plugins/sdk/objective.h"
#include "plugins/sdk/token_model.h"

namespace capstan {

struct GenerationConfig {
  absl::optional<bool> do_sample;
  absl::optional<double> temperature;
  absl::optional<double> top_p;
  absl::optional<double> min_p;
  absl::optional<double> repetition_penalty;
  absl::optional<int64_t> top_k;
  absl::optional<int64_t> no_repeat_ngram_size;
  absl::optional<int64_t> max_new_tokens;
  absl::optional<int64_t> min_new_tokens;
  std::vector<int64_t> suppress_tokens;
  std::vector<int64_t> begin_suppress_tokens;
  std::vector<std::string> stop_strings;
  BeamSettings beams;  // num_beams, length_penalty, early_stopping
  // Keys whose values would change a text, but have no counterpart here.
  std::vector<std::string> ignored;
};

// INVALID_ARGUMENT for a value of the wrong kind. "" has no keys.
absl::StatusOr<GenerationConfig> ParseGenerationConfig(absl::string_view text);

// The model's own; one without keys if it has none.
absl::StatusOr<GenerationConfig> GenerationConfigOf(const TokenModel& model);

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_LIB_GENERATION_CONFIG_H_
