// SPDX-License-Identifier: Apache-2.0
//
// Masked diffusion, with LLaDA's training and sampling: see
// masked_diffusion.proto. Needs a TokenModel that isn't causal.
#ifndef CAPSTAN_PLUGINS_LLADA_MASKED_DIFFUSION_MASKED_DIFFUSION_H_
#define CAPSTAN_PLUGINS_LLADA_MASKED_DIFFUSION_MASKED_DIFFUSION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/llada/masked_diffusion/masked_diffusion.pb.h"
#include "plugins/llada/masked_diffusion/noise.h"
#include "plugins/llada/masked_diffusion/sampler.h"
#include "plugins/llada/masked_diffusion/vrpo.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/objective.h"

namespace capstan::masked_diffusion {

// Masks are drawn on the host, from HostTensor's copies; a GPU gets the result,
// a few bytes per token.
class MaskedDiffusion final : public Objective {
 public:
  static absl::StatusOr<std::unique_ptr<MaskedDiffusion>> Create(
      const Config& config);

  absl::Status Check(Model& model, const DatasetReader& data) const override;
  int64_t CountTargets(const Batch& batch, const StepInfo& info) const override;
  bool allows_divided_rows() const override { return true; }
  bool has_whole_sums() const override { return vrpo_ != nullptr; }
  // Accuracy at the targets and, for whole texts, the bound of PRETRAIN's loss,
  // whichever the loss is, but VRPO; only if StepInfo::thorough.
  std::vector<MetricTags> metrics() const override;
  LossSum Compute(Model& model, const Batch& batch, const StepInfo& info,
                  UnitRunner& runner) override;
  // VRPO's, for models without an adapter.
  bool has_rollouts() const override { return vrpo_ != nullptr; }
  absl::Status Rollout(Model& model, std::vector<Batch>* batches,
                       const RolloutInfo& info, UnitRunner& runner) override;
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
  absl::Status CheckMask(const TokenModel& model,
                         const DatasetReader& data) const;
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
  std::unique_ptr<const Vrpo> vrpo_;  // null: another loss
};

}  // namespace capstan::masked_diffusion

#endif  // CAPSTAN_PLUGINS_LLADA_MASKED_DIFFUSION_MASKED_DIFFUSION_H_
