// SPDX-License-Identifier: Apache-2.0
//
// Masked diffusion, as LLaDA trains and samples: see masked_diffusion.proto.
// Needs a TokenModel that isn't causal.
#ifndef CAPSTAN_PLUGINS_OBJECTIVE_MASKED_DIFFUSION_MASKED_DIFFUSION_H_
#define CAPSTAN_PLUGINS_OBJECTIVE_MASKED_DIFFUSION_MASKED_DIFFUSION_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/objective/masked_diffusion/masked_diffusion.pb.h"
#include "plugins/objective/masked_diffusion/noise.h"
#include "plugins/objective/masked_diffusion/sampler.h"
#include "plugins/sdk/objective.h"

namespace capstan {
namespace masked_diffusion {

// What is hidden of a batch is drawn on the host, whatever device it is on,
// from HostTensor's copies; a GPU gets the mask, a few bytes a token.
class MaskedDiffusion final : public Objective {
 public:
  static absl::StatusOr<std::unique_ptr<MaskedDiffusion>> Create(
      const Config& config);

  absl::Status Check(Model& model, const DatasetReader& data) const override;
  int64_t CountTargets(const Batch& batch, const StepInfo& info) const override;
  // Accuracy at the targets, and of whole texts the bound of PRETRAIN's loss,
  // whichever the loss is; only where StepInfo::thorough asks for them.
  std::vector<MetricTags> metrics() const override {
    return {{"train/accuracy", "eval/accuracy"},
            {"train/bound", "eval/bound_nats_per_token"}};
  }
  LossSum Compute(Model& model, const Batch& batch, const StepInfo& info,
                  UnitRunner& runner) override;
  std::vector<std::pair<std::string, double>> DerivedFromLoss(
      double loss) const override;
  // The prompt stands before the new tokens; on_token isn't called, on_text is.
  absl::StatusOr<std::vector<int64_t>> Sample(
      Model& model, const std::vector<int64_t>& prompt,
      const SampleOptions& options, UnitRunner& runner) override;

 private:
  explicit MaskedDiffusion(const Config& config);

  int64_t MaskToken(const TokenModel& model) const;
  absl::Status CheckModel(Model& model) const;
  // A batch's texts, and what is hidden of them.
  struct Drawn {
    Layout layout;
    Noise noise;
  };
  Drawn Draw(const Batch& batch, const StepInfo& info) const;
  // [1, 2]: PRETRAIN's loss sum of whole texts and its count; 0 of others.
  at::Tensor Bound(TokenModel& model, const Batch& batch, const Drawn& drawn,
                   UnitRunner& runner) const;
  absl::StatusOr<SamplerOptions> Merged(const SampleOptions& options,
                                        const TokenModel& model) const;

  const Config config_;
  const double eps_;
  const double random_length_ratio_;
  const SamplerOptions sampler_;
};

}  // namespace masked_diffusion
}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_OBJECTIVE_MASKED_DIFFUSION_MASKED_DIFFUSION_H_
