// SPDX-License-Identifier: Apache-2.0
//
// How models of which a token sees only what comes before it continue a text.
#ifndef CAPSTAN_PLUGINS_OBJECTIVE_COMMON_CAUSAL_SAMPLER_H_
#define CAPSTAN_PLUGINS_OBJECTIVE_COMMON_CAUSAL_SAMPLER_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "plugins/objective/common/decode_loop.h"
#include "plugins/objective/common/sample_token.h"
#include "plugins/sdk/beam_searcher.h"
#include "plugins/sdk/objective.h"
#include "plugins/sdk/token_model.h"

namespace capstan {

// What decides how a text goes on: flags come before the objective's config,
// which comes before the model's generation_config.json.
class CausalSampler {
 public:
  // Of an objective's config with the fields of capstan.causal_lm's.
  // FieldError for invalid values.
  template <typename Config>
  static absl::StatusOr<CausalSampler> Create(const Config& config) {
    SampleOptions given;
    if (config.has_temperature()) given.temperature = config.temperature();
    if (config.top_k() != 0) given.top_k = config.top_k();
    if (config.has_top_p()) given.top_p = config.top_p();
    if (config.has_min_p()) given.min_p = config.min_p();
    if (config.has_repetition_penalty()) {
      given.repetition_penalty = config.repetition_penalty();
    }
    if (config.no_repeat_ngram_size() != 0) {
      given.no_repeat_ngram_size = config.no_repeat_ngram_size();
    }
    given.greedy = config.greedy();
    given.max_new_tokens = config.max_new_tokens();
    return Create(given);
  }

  // As Objective::Sample. context: null: its own.
  absl::StatusOr<std::vector<int64_t>> Sample(
      TokenModel& model, const std::vector<int64_t>& prompt,
      const SampleOptions& options, UnitRunner& runner,
      CausalContext* context = nullptr) const;
  // As Objective::SampleBatch. In one cache, but for texts longer than the
  // model's positions.
  absl::StatusOr<std::vector<std::vector<int64_t>>> SampleBatch(
      TokenModel& model, absl::Span<const BatchPrompt> prompts,
      const SampleOptions& options, const Objective::Ended& ended,
      UnitRunner& runner) const;
  // As BeamSearcher::SearchBeams.
  absl::StatusOr<std::vector<Beam>> SearchBeams(
      TokenModel& model, const std::vector<int64_t>& prompt,
      const SampleOptions& options, const BeamSettings& settings,
      UnitRunner& runner) const;

 private:
  // What all of it comes to for one text.
  struct Plan {
    SamplerOptions sampler;
    int64_t wanted;  // new tokens, at most
  };

  explicit CausalSampler(const SampleOptions& given) : given_(given) {}
  // `given`: the config's; max_new_tokens 0: not given.
  static absl::StatusOr<CausalSampler> Create(const SampleOptions& given);

  absl::StatusOr<Plan> PlanFor(const TokenModel& model,
                               const SampleOptions& options) const;

  SampleOptions given_;
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_OBJECTIVE_COMMON_CAUSAL_SAMPLER_H_
