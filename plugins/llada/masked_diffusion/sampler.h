// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_LLADA_MASKED_DIFFUSION_SAMPLER_H_
#define CAPSTAN_PLUGINS_LLADA_MASKED_DIFFUSION_SAMPLER_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "plugins/llada/masked_diffusion/masked_diffusion.pb.h"
#include "plugins/sdk/token_model.h"
#include "plugins/sdk/unit_runner.h"

namespace capstan::masked_diffusion {

// The block-wise sampler, as in generate.py of LLaDA's authors, except that it
// never chooses the mask token.
struct SamplerOptions {
  int64_t max_new_tokens = 128;
  int64_t block_length = 0;  // 0: see masked_diffusion.proto
  int64_t steps = 0;         // 0: one per new token
  double temperature = 0.0;
  bool random_remasking = false;
  double cfg_scale = 0.0;
  double confidence_threshold = 0.0;  // 0: none
  Config::Cache cache = Config::NONE;
  absl::optional<int64_t> cache_refresh;
  uint64_t seed = 0;
  // The text ends after the first of these.
  std::vector<int64_t> stop_tokens;
  // Polled before each step; true: CANCELLED.
  std::function<bool()> stop = [] { return false; };
};

// FieldError for invalid values.
absl::Status CheckSamplerOptions(const SamplerOptions& options);

// What each step does.
struct Schedule {
  int64_t blocks = 0;
  int64_t block_length = 0;
  int64_t steps_per_block = 0;
  // How many tokens step 0, 1, .. of a block chooses: the same number each, and
  // the remainder in the first ones. May be 0.
  int64_t TokensIn(int64_t step) const;
};

// The schedule for at most `room` new tokens. FieldError for options that are
// invalid or don't divide each other; FAILED_PRECONDITION if no block fits.
absl::StatusOr<Schedule> ScheduleOf(const SamplerOptions& options,
                                    int64_t room);

// Called after each step with the text, which has `mask_token` where none is
// chosen yet; may be null.
using OnText = std::function<void(absl::Span<const int64_t> text)>;

// Returns `prompt` and its continuation, up to the first stop token. Without
// gradients. INVALID_ARGUMENT if the logits aren't finite; FieldError if
// options ask for a cache and the model has none.
absl::StatusOr<std::vector<int64_t>> Unmask(
    TokenModel& model, const std::vector<int64_t>& prompt, int64_t mask_token,
    const SamplerOptions& options, const OnText& on_text, UnitRunner& runner);

}  // namespace capstan::masked_diffusion

#endif  // CAPSTAN_PLUGINS_LLADA_MASKED_DIFFUSION_SAMPLER_H_
