// SPDX-License-Identifier: Apache-2.0
//
// Masked diffusion, with LLaDA's training and sampling: see
// masked_diffusion.proto. Needs a TokenModel that isn't causal.
#ifndef CAPSTAN_PLUGINS_LLADA_MASKED_DIFFUSION_MASKED_DIFFUSION_H_
#define CAPSTAN_PLUGINS_LLADA_MASKED_DIFFUSION_MASKED_DIFFUSION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "plugins/llada/masked_diffusion/masked_diffusion.pb.h"
#include "plugins/llada/masked_diffusion/noise.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/objective.h"

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

// Masks are drawn on the host, from HostTensor's copies; a GPU gets the result,
// a few bytes per token.
class MaskedDiffusion final : public Objective {
 public:
  static absl::StatusOr<std::unique_ptr<MaskedDiffusion>> Create(
      const Config& config);

  absl::Status Check(Model& model, const DatasetReader& data) const override;
  int64_t CountTargets(const Batch& batch, const StepInfo& info) const override;
  bool allows_divided_rows() const override { return true; }
  // Accuracy at the targets and, for whole texts, the bound of PRETRAIN's loss,
  // whichever the loss is; only if StepInfo::thorough.
  std::vector<MetricTags> metrics() const override {
    return {{"", "eval/accuracy"}, {"", "eval/bound_nats_per_token"}};
  }
  LossSum Compute(Model& model, const Batch& batch, const StepInfo& info,
                  UnitRunner& runner) override;
  std::vector<std::pair<std::string, double>> DerivedFromLoss(
      double loss) const override;
  // The prompt precedes the new tokens; calls on_text, not on_token.
  absl::StatusOr<std::vector<int64_t>> Sample(
      Model& model, const std::vector<int64_t>& prompt,
      const SampleOptions& options, UnitRunner& runner) override;

 private:
  explicit MaskedDiffusion(const Config& config);

  int64_t MaskToken(const TokenModel& model) const;
  absl::Status CheckModel(Model& model) const;
  // A batch's texts and masks.
  struct Drawn {
    Layout layout;
    Noise noise;
  };
  Drawn Draw(const Batch& batch, const StepInfo& info) const;
  // [1, 2]: PRETRAIN's loss sum and count for whole texts; 0 for others.
  at::Tensor Bound(TokenModel& model, const Batch& batch, const Drawn& drawn,
                   UnitRunner& runner) const;
  absl::StatusOr<SamplerOptions> Merged(const SampleOptions& options,
                                        const TokenModel& model) const;

  const Config config_;
  const double eps_;
  const double random_length_ratio_;
  const SamplerOptions sampler_;
};

}  // namespace capstan::masked_diffusion

#endif  // CAPSTAN_PLUGINS_LLADA_MASKED_DIFFUSION_MASKED_DIFFUSION_H_
