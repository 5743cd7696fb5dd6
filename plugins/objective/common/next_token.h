// SPDX-License-Identifier: Apache-2.0
//
// The token after a text, drawn by a model's logits, and whether it ends there.
#ifndef CAPSTAN_PLUGINS_OBJECTIVE_COMMON_NEXT_TOKEN_H_
#define CAPSTAN_PLUGINS_OBJECTIVE_COMMON_NEXT_TOKEN_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "plugins/objective/common/sample_token.h"
#include "plugins/sdk/token_model.h"

namespace capstan {

// What draws the tokens of one text, beside its SamplerOptions.
struct TokenDraw {
  int64_t prompt = 0;         // tokens
  std::vector<int64_t> ends;  // tokens that end the text
  uint64_t seed = 0;

  bool EndsWith(int64_t token) const;
};

// All tokens that end a text: the model's and `stop_tokens`.
std::vector<int64_t> EndsOf(const TokenModel& model,
                            const std::vector<int64_t>& stop_tokens);

// The token after `text`, by the model's logits [V], which it changes.
absl::StatusOr<int64_t> NextToken(absl::Span<float> logits,
                                  const SamplerOptions& sampler,
                                  const TokenDraw& draw,
                                  absl::Span<const int64_t> text);

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_OBJECTIVE_COMMON_NEXT_TOKEN_H_
