// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_BATCH_SAMPLER_H_
#define CAPSTAN_PLUGINS_SDK_BATCH_SAMPLER_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "plugins/sdk/objective.h"

namespace capstan {

// One prompt of several that are continued together.
struct BatchPrompt {
  std::vector<int64_t> ids;          // at least one
  uint64_t seed = 0;                 // of its random numbers
  std::vector<int64_t> stop_tokens;  // as SampleOptions::stop_tokens
};

// An Objective also derives from this if it can continue several prompts at
// once; found by dynamic_cast.
class BatchSampler {
 public:
  virtual ~BatchSampler();

  // Whether a row's text, prompt included, ends here; may be null.
  using Ended = std::function<bool(size_t row, absl::Span<const int64_t> text)>;

  // As Objective::Sample for each prompt, with its own seed and stop tokens in
  // place of those in `options`, whose callbacks but `stop` aren't called.
  // `ended` is asked after each token, except of texts that have to be
  // continued alone. UNIMPLEMENTED if the model's cache is no BatchedCache.
  virtual absl::StatusOr<std::vector<std::vector<int64_t>>> SampleBatch(
      Model& model, absl::Span<const BatchPrompt> prompts,
      const SampleOptions& options, const Ended& ended, UnitRunner& runner) = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_BATCH_SAMPLER_H_
