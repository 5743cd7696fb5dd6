// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_INFERENCE_EVALUATE_BOUND_SCORER_H_
#define CAPSTAN_INFERENCE_EVALUATE_BOUND_SCORER_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "inference/evaluate/scorer.h"
#include "plugins/sdk/token_model.h"

namespace capstan::evaluate {

// How to estimate what a masked diffusion model thinks of a text.
struct BoundSettings {
  int64_t samples = 128;  // masks drawn for each continuation
  uint64_t seed = 0;
  // Whether to find out if the model would write the continuation itself, by
  // unmasking the likeliest token first: a forward for each token.
  bool greedy = false;
  // Logits (float32, of all positions) that may exist at once, unless a single
  // text has more.
  int64_t most_logits = int64_t{1} << 28;
};

// As ScoreContinuations, for a model that sees the whole text and has a
// mask_token: `log_likelihood` is an estimate of the lower bound
//   -E[L / k * sum over the masked of -log p(x_i | context, what isn't masked)]
// over k from 1 to the continuation's length L and sets of k masked tokens
// (Nie et al., "Large Language Diffusion Models", 2025, equation 6, which
// varies less than its equation 4). As in ML-GSAI's get_log_likelihood.py the
// numbers k of up to 16 masks are spread evenly from a random first one. The
// same request has the same masks in each run and on any number of ranks.
absl::StatusOr<std::vector<std::vector<Score>>> ScoreByBound(
    TokenModel* model, absl::Span<const EncodedRequest> requests,
    const BoundSettings& settings, UnitRunner& runner);

}  // namespace capstan::evaluate

#endif  // CAPSTAN_INFERENCE_EVALUATE_BOUND_SCORER_H_
