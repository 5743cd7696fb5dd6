// SPDX-License-Identifier: Apache-2.0
#include "plugins/objective/common/next_token.h"

#include <algorithm>

#include "base/random.h"

namespace capstan {

bool TokenDraw::EndsWith(int64_t token) const {
  return std::find(ends.begin(), ends.end(), token) != ends.end();
}

std::vector<int64_t> EndsOf(const TokenModel& model,
                            const std::vector<int64_t>& stop_tokens) {
  std::vector<int64_t> ends = EndTokensOf(model);
  ends.insert(ends.end(), stop_tokens.begin(), stop_tokens.end());
  return ends;
}

absl::StatusOr<int64_t> NextToken(absl::Span<float> logits,
                                  const SamplerOptions& sampler,
                                  const TokenDraw& draw,
                                  absl::Span<const int64_t> text) {
  ApplyRules(sampler.rules, text, draw.prompt, draw.ends, logits);
  return SampleToken(
      logits, sampler,
      RandomUniform(RandomKey(draw.seed, "sample"), text.size()));
}

}  // namespace capstan
