// SPDX-License-Identifier: Apache-2.0
#include "inference/load/sample_logits.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "plugins/sdk/token_model.h"

namespace capstan {

absl::StatusOr<std::vector<int64_t>> FixedTokens(Model& model) {
  constexpr int64_t kTokens = 64;
  TokenModel* const tokens = model.token_model();
  if (tokens == nullptr) {
    return absl::UnimplementedError("the model isn't one of token sequences");
  }
  std::vector<int64_t> ids(std::min(kTokens, tokens->max_positions()));
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = (7919 * static_cast<int64_t>(i) + 13) % tokens->vocab_size();
  }
  return ids;
}

at::Tensor LogitsOf(Model& model, const std::vector<int64_t>& tokens,
                    UnitRunner& runner) {
  const at::NoGradGuard no_grad;
  const auto length = static_cast<int64_t>(tokens.size());
  TokenInput input;
  input.tokens = at::empty({1, length}, at::kLong);
  std::copy(tokens.begin(), tokens.end(),
            input.tokens.mutable_data_ptr<int64_t>());
  TokenModel& of_tokens = *model.token_model();
  at::Tensor logits;
  if (TextScores* const scores = of_tokens.text_scores()) {
    // A text for each of its ends.
    input.tokens = input.tokens.expand({length, length}).contiguous();
    logits = scores->Scores(input, at::arange(length, at::kLong), runner)
                 .unsqueeze(1);
  } else {
    logits = of_tokens.Logits(input, runner).squeeze(0);
  }
  return logits.to(at::kCPU, at::kFloat).clone();
}

at::Tensor LogitsOf(Model& model, const std::vector<int64_t>& tokens) {
  PlainRunner runner;
  return LogitsOf(model, tokens, runner);
}

}  // namespace capstan
