// SPDX-License-Identifier: Apache-2.0
//
// How models of which a token sees only what comes before it continue a text.
#ifndef CAPSTAN_PLUGINS_OBJECTIVE_COMMON_CAUSAL_SAMPLER_H_
#define CAPSTAN_PLUGINS_OBJECTIVE_COMMON_CAUSAL_SAMPLER_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "plugins/objective/common/decode_loop.h"
#include "plugins/objective/common/sample_token.h"
#include "plugins/sdk/objective.h"
#include "plugins/sdk/text_batch.h"
#include "plugins/sdk/token_model.h"

namespace capstan {

// An objective of such models. What decides how a text goes on: flags come
// before the objective's config, which comes before the model's
// generation_config.json.
class CausalObjective : public Objective, public TextBatching {
 public:
  absl::StatusOr<std::vector<int64_t>> Sample(
      Model& model, const std::vector<int64_t>& prompt,
      const SampleOptions& options, UnitRunner& runner) override;
  // In one cache, but for texts longer than the model's positions.
  absl::StatusOr<std::vector<std::vector<int64_t>>> SampleBatch(
      Model& model, absl::Span<const BatchPrompt> prompts,
      const SampleOptions& options, const Ended& ended,
      UnitRunner& runner) override;
  absl::StatusOr<std::vector<Beam>> SearchBeams(
      Model& model, const std::vector<int64_t>& prompt,
      const SampleOptions& options, const BeamSettings& settings,
      UnitRunner& runner) override;
  void KeepContext(bool keep) override;
  absl::StatusOr<std::unique_ptr<TextBatch>> NewTextBatch(
      Model& model, bool keep_context) override;

 protected:
  // `given`: what the config says of sampling; max_new_tokens 0: nothing.
  explicit CausalObjective(SampleOptions given) : given_(std::move(given)) {}

  // Of a config with the fields of capstan.causal_lm's. FieldError for invalid
  // values.
  template <typename Config>
  static absl::StatusOr<SampleOptions> SamplingOf(const Config& config) {
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
    const absl::Status status = CheckSampling(given);
    if (!status.ok()) return status;
    return given;
  }

  // INVALID_ARGUMENT if the objective is of other models.
  virtual absl::Status CheckModel(Model& model) const = 0;

 private:
  // What all of it comes to for one text.
  struct Plan {
    SamplerOptions sampler;
    int64_t wanted;  // new tokens, at most
  };

  static absl::Status CheckSampling(const SampleOptions& given);
  absl::StatusOr<Plan> PlanFor(const TokenModel& model,
                               const SampleOptions& options) const;

  const SampleOptions given_;
  std::unique_ptr<CausalContext> context_;  // null: isn't kept
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_OBJECTIVE_COMMON_CAUSAL_SAMPLER_H_
