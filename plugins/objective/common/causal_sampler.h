// SPDX-License-Identifier: Apache-2.0
//
// How models of which a token sees only what comes before it continue a text.
#ifndef CAPSTAN_PLUGINS_OBJECTIVE_COMMON_CAUSAL_SAMPLER_H_
#define CAPSTAN_PLUGINS_OBJECTIVE_COMMON_CAUSAL_SAMPLER_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "plugins/sdk/batch_sampler.h"
#include "plugins/sdk/objective.h"
#include "plugins/sdk/token_model.h"

namespace capstan {

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

// The end of a text that a model sees, with cached keys and values. When the
// model runs out of positions, the later half is started again.
class CausalContext {
 public:
  // Whether Begin makes use of what the last text left.
  explicit CausalContext(bool kept) : kept_(kept) {}

  // Before a text that begins with `prompt` and is to have `longest` tokens.
  void Begin(TokenModel* model, absl::Span<const int64_t> prompt,
             int64_t longest);
  // float32 logits [V] on the CPU for the token after `text`, which is longer
  // than at the last call.
  absl::StatusOr<at::Tensor> NextLogits(std::vector<int64_t>& text,
                                        const std::function<bool()>& stop,
                                        UnitRunner& runner);

 private:
  const bool kept_;
  TokenModel* model_ = nullptr;
  int64_t capacity_ = 0;
  std::unique_ptr<KvCache> cache_;
  std::vector<int64_t> cached_;  // the tokens in it
  int64_t begin_ = 0;            // offset in the text of the cache's start
};

class CausalSampler {
 public:
  // Of an objective's config with the fields of capstan.causal_lm's.
  // FieldError for invalid values.
  template <typename Config>
  static absl::StatusOr<CausalSampler> Create(const Config& config) {
    SamplerOptions options;
    if (config.has_temperature()) options.temperature = config.temperature();
    options.top_k = config.top_k();
    if (config.has_top_p()) options.top_p = config.top_p();
    options.greedy = config.greedy();
    return Create(options, config.max_new_tokens());
  }
  // max_new_tokens: 0: 200.
  static absl::StatusOr<CausalSampler> Create(const SamplerOptions& options,
                                              int64_t max_new_tokens);

  // As Objective::Sample. context: null: its own.
  absl::StatusOr<std::vector<int64_t>> Sample(
      TokenModel& model, const std::vector<int64_t>& prompt,
      const SampleOptions& options, UnitRunner& runner,
      CausalContext* context = nullptr) const;
  // As BatchSampler::SampleBatch. In one cache, but for texts longer than the
  // model's positions.
  absl::StatusOr<std::vector<std::vector<int64_t>>> SampleBatch(
      TokenModel& model, absl::Span<const BatchPrompt> prompts,
      const SampleOptions& options, const BatchSampler::Ended& ended,
      UnitRunner& runner) const;

 private:
  CausalSampler(const SamplerOptions& options, int64_t max_new_tokens)
      : options_(options), max_new_tokens_(max_new_tokens) {}

  // `options`, with unset fields taken from the config.
  SamplerOptions Merged(const SampleOptions& options) const;

  SamplerOptions options_;
  int64_t max_new_tokens_;
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_OBJECTIVE_COMMON_CAUSAL_SAMPLER_H_
