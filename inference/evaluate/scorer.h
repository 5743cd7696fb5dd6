// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_INFERENCE_EVALUATE_SCORER_H_
#define CAPSTAN_INFERENCE_EVALUATE_SCORER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "plugins/sdk/token_model.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan::evaluate {

// A context and what may follow it, as token ids.
struct EncodedRequest {
  std::vector<int64_t> context;  // at least one
  std::vector<std::vector<int64_t>> continuations;
};

// Encodes as the harness does (lm_eval/api/model.py, _encode_pair): a
// continuation is what the tokens of both have beyond those of the context
// alone, after the context's trailing space has moved to it. A context begins
// with the tokens that the tokenizer puts before a text, if it has some; an
// empty one is the begin (or end) token. Contexts lose their first tokens where
// more than `max_positions` would follow the first one: as many as a causal
// model has positions, since it doesn't read the last token, and one fewer for
// other models. FAILED_PRECONDITION without such a token, INVALID_ARGUMENT for
// a continuation that leaves no room.
absl::StatusOr<EncodedRequest> EncodeRequest(
    const Tokenizer& tokenizer, std::string context,
    const std::vector<std::string>& continuations, int64_t max_positions);

// A whole text in windows of `max_positions` tokens (lm_eval/utils.py,
// get_rolling_token_windows): the first behind the begin (or end) token, the
// others behind as many tokens as there is room for, at least one. None for an
// empty text. FAILED_PRECONDITION without such a token.
absl::StatusOr<std::vector<EncodedRequest>> EncodeWindows(
    const Tokenizer& tokenizer, const std::string& text, int64_t max_positions);

struct Score {
  double log_likelihood = 0.0;  // nats
  // Whether each of its tokens is the likeliest.
  bool greedy = true;
};

// The scores of each request's continuations: contexts side by side in one
// cache, and the continuations one after the other behind them. A model whose
// cache holds one text only is asked text by text, which costs each context
// once for each continuation. Without gradients.
absl::StatusOr<std::vector<std::vector<Score>>> ScoreContinuations(
    TokenModel* model, absl::Span<const EncodedRequest> requests,
    UnitRunner& runner);

}  // namespace capstan::evaluate

#endif  // CAPSTAN_INFERENCE_EVALUATE_SCORER_H_
