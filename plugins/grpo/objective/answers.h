// SPDX-License-Identifier: Apache-2.0
//
// How answers to prompts are sampled: all of a batch in one cache, in which a
// prompt is read once for all of its answers.
#ifndef CAPSTAN_PLUGINS_GRPO_OBJECTIVE_ANSWERS_H_
#define CAPSTAN_PLUGINS_GRPO_OBJECTIVE_ANSWERS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "plugins/objective/common/sample_token.h"
#include "plugins/sdk/token_model.h"
#include "plugins/sdk/unit_runner.h"

namespace capstan::grpo {

// A prompt and the seeds of its answers, of which each draws its own tokens.
struct Question {
  std::vector<int64_t> prompt;  // at least one token
  std::vector<uint64_t> seeds;  // at least one
  // How many of the prompt's tokens are the answer's already, of its earlier
  // turns: fewer than max_new_tokens.
  int64_t answered = 0;
};

struct SampledAnswer {
  std::vector<int64_t> text;  // prompt and answer, with the token that ended it
  // Of each token behind the prompt: log softmax(logits / temperature),
  // whatever else decided the choice.
  std::vector<float> log_probs;
  bool truncated = false;  // max_new_tokens ended it
};

struct AnswerOptions {
  SamplerOptions sampler;
  int64_t max_new_tokens = 1;
  int64_t rows = 0;  // the most answers at once; 0: all
};

// Returns the answers of all questions, in order. Without gradients. An answer
// depends on model, prompt and seed alone: in a deterministic run its bits do,
// too. Asks `all_done`, RolloutInfo's or MeasureInfo's, before each forward.
// CANCELLED if that says that the run is to stop.
absl::StatusOr<std::vector<SampledAnswer>> SampleAnswers(
    TokenModel* model, absl::Span<const Question> questions,
    const AnswerOptions& options,
    const std::function<bool(bool done)>& all_done, UnitRunner& runner);

// Runs a forward of no use, for others' forwards that may contain collectives.
void RunIdleForward(TokenModel* model, UnitRunner& runner);

// After this rank's last SampleAnswers: runs forwards until other ranks, which
// may sample more, are done, too.
void AwaitOthers(TokenModel* model,
                 const std::function<bool(bool done)>& all_done,
                 UnitRunner& runner);

}  // namespace capstan::grpo

#endif  // CAPSTAN_PLUGINS_GRPO_OBJECTIVE_ANSWERS_H_
