// SPDX-License-Identifier: Apache-2.0
//
// Next-token prediction: the sum of -log p(token[t + 1] | tokens[0..t]), within
// each document of a packed row. Needs a TokenModel.
#ifndef CAPSTAN_PLUGINS_OBJECTIVE_CAUSAL_LM_CAUSAL_LM_H_
#define CAPSTAN_PLUGINS_OBJECTIVE_CAUSAL_LM_CAUSAL_LM_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "plugins/objective/causal_lm/causal_lm.pb.h"
#include "plugins/sdk/batch_sampler.h"
#include "plugins/sdk/objective.h"

namespace capstan::causal_lm {

struct SamplerOptions {
  double temperature = 1.0;
  int64_t top_k = 0;   // 0: all
  double top_p = 1.0;  // 1: all
  bool greedy = false;
};

// FieldError for invalid values.
absl::Status CheckSamplerOptions(const SamplerOptions& options);

// Samples a token from softmax(logits / temperature), restricted first to the
// top_k likeliest tokens and then to the smallest set of the likeliest that
// reaches top_p (Holtzman et al., "The Curious Case of Neural Text
// Degeneration", 2020), by `uniform` in [0, 1). A temperature of 0 is greedy;
// the first of equal tokens wins. INVALID_ARGUMENT if no logit is finite.
absl::StatusOr<int64_t> SampleToken(absl::Span<const float> logits,
                                    const SamplerOptions& options,
                                    double uniform);

class CausalLm final : public Objective, public BatchSampler {
 public:
  static absl::StatusOr<std::unique_ptr<CausalLm>> Create(const Config& config);

  absl::Status Check(Model& model, const DatasetReader& data) const override;
  int64_t CountTargets(const Batch& batch, const StepInfo& info) const override;
  // Accuracy at the targets, only if StepInfo::thorough.
  std::vector<MetricTags> metrics() const override {
    return {{"train/accuracy", "eval/accuracy"}};
  }
  LossSum Compute(Model& model, const Batch& batch, const StepInfo& info,
                  UnitRunner& runner) override;
  std::vector<std::pair<std::string, double>> DerivedFromLoss(
      double loss) const override;
  absl::StatusOr<std::vector<int64_t>> Sample(
      Model& model, const std::vector<int64_t>& prompt,
      const SampleOptions& options, UnitRunner& runner) override;
  // In one cache, but for texts longer than the model's positions.
  absl::StatusOr<std::vector<std::vector<int64_t>>> SampleBatch(
      Model& model, absl::Span<const BatchPrompt> prompts,
      const SampleOptions& options, const Ended& ended,
      UnitRunner& runner) override;

 private:
  CausalLm(const SamplerOptions& sampler, int64_t max_new_tokens)
      : sampler_(sampler), max_new_tokens_(max_new_tokens) {}

  // `options`, with unset fields taken from the config.
  SamplerOptions Merged(const SampleOptions& options) const;

  const SamplerOptions sampler_;
  const int64_t max_new_tokens_;
};

}  // namespace capstan::causal_lm

#endif  // CAPSTAN_PLUGINS_OBJECTIVE_CAUSAL_LM_CAUSAL_LM_H_
