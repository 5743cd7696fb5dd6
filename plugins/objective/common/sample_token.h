// SPDX-License-Identifier: Apache-2.0
//
// Which token follows, by a model's logits.
#ifndef CAPSTAN_PLUGINS_OBJECTIVE_COMMON_SAMPLE_TOKEN_H_
#define CAPSTAN_PLUGINS_OBJECTIVE_COMMON_SAMPLE_TOKEN_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace capstan {

// What changes logits before a token is chosen, also the likeliest one. As
// transformers' LogitsProcessors of the same names.
struct LogitRules {
  // The logits of tokens that the text has, prompt included, are divided by it
  // if positive, else multiplied (Keskar et al., "CTRL", 2019, section 4.1).
  double repetition_penalty = 1.0;
  // No run of so many tokens comes twice, prompt included; 0: no limit.
  int64_t no_repeat_ngram_size = 0;
  // No end of text before so many new tokens.
  int64_t min_new_tokens = 0;
  std::vector<int64_t> suppress_tokens;        // never chosen
  std::vector<int64_t> begin_suppress_tokens;  // not as the first new token

  bool any() const;
};

struct SamplerOptions {
  double temperature = 1.0;
  int64_t top_k = 0;   // 0: all
  double top_p = 1.0;  // 1: all
  bool greedy = false;
  double min_p = 0.0;  // 0: all
  LogitRules rules;
};

// FieldError for invalid values.
absl::Status CheckSamplerOptions(const SamplerOptions& options);

// Applies `rules` to the logits after `text`, which begins with `prompt`
// tokens; `ends` are the tokens that end a text. Forbidden tokens get -inf.
void ApplyRules(const LogitRules& rules, absl::Span<const int64_t> text,
                int64_t prompt, absl::Span<const int64_t> ends,
                absl::Span<float> logits);

// Samples a token from softmax(logits / temperature), restricted first to the
// top_k likeliest tokens, then to the smallest set of the likeliest that
// reaches top_p (Holtzman et al., "The Curious Case of Neural Text
// Degeneration", 2020), then to those that have min_p times the likeliest
// one's probability (Nguyen et al., "Turning Up the Heat", 2024), by `uniform`
// in [0, 1). A temperature of 0 is greedy; the first of equal tokens wins. The
// rules aren't applied. INVALID_ARGUMENT if no logit is finite.
absl::StatusOr<int64_t> SampleToken(absl::Span<const float> logits,
                                    const SamplerOptions& options,
                                    double uniform);

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_OBJECTIVE_COMMON_SAMPLE_TOKEN_H_
