// SPDX-License-Identifier: Apache-2.0
//
// Variance-reduced preference optimisation (VRPO; Zhu et al., "LLaDA 1.5",
// arXiv 2505.19223v2): DPO's loss of a masked diffusion model, with estimates B
// of the lower bound of log p(answer | prompt) in place of log p, which such a
// model doesn't give (section 3.1, equation 8):
//
//   -log sigmoid(beta ((B(chosen) - B_ref(chosen)) -
//                      (B(rejected) - B_ref(rejected))))
//
// B is a mean over `bound_samples` draws of a time t and of a mask (equation
// 6): of 1 / p(t) times the sum of log p over the masked tokens (appendix A,
// equation 13). Section 3.2 shows that the variance of the difference of bounds
// makes the loss biased and noisy, and what lowers it without a bias: more
// draws; one mask for each t rather than several (proposition 1); and the same
// draws for B and B_ref ("antithetic sampling", proposition 2), whose errors
// then cancel.
//
// The paper's own run differs in three things (appendices A and D.3): it masks
// exactly l of L tokens, l drawn in place of t, and weighs by L / l (equation
// 15), which has the same mean and a lower variance; beta is 0.2; and it adds
// 0.05 times the loss of fine-tuning.
#ifndef CAPSTAN_PLUGINS_LLADA_MASKED_DIFFUSION_VRPO_H_
#define CAPSTAN_PLUGINS_LLADA_MASKED_DIFFUSION_VRPO_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/objective.h"
#include "plugins/sdk/token_model.h"

namespace capstan::masked_diffusion {

struct VrpoOptions {
  double beta = 0.1;
  int64_t bound_samples = 8;
  double eps = 1e-3;  // as Config::eps
};

// The reference is the model without its adapter or, if it has none, with the
// weights that training started from: Rollout adds its bounds to the step's
// batches. Draws are keyed by the text's place in the run, so that Rollout's
// are Compute's, on any rank and in any micro-batch.
class Vrpo {
 public:
  explicit Vrpo(const VrpoOptions& options) : options_(options) {}

  // Checks that the data has pairs, and that the model gives their losses.
  absl::Status Check(TokenModel& model, const DatasetReader& data) const;
  std::vector<MetricTags> metrics() const;

  // Of a batch of pairs. An evaluation without an adapter has no reference, and
  // so no loss, but only the bounds among the metrics.
  LossSum Compute(Model& model, int64_t mask_token, const Batch& batch,
                  const StepInfo& info, UnitRunner& runner) const;

  // As Objective::Rollout.
  absl::Status Rollout(Model& model, int64_t mask_token,
                       std::vector<Batch>* batches, const RolloutInfo& info,
                       UnitRunner& runner) const;

 private:
  struct Draws;
  struct Bounds {
    at::Tensor model;      // [2 B] float32, with gradient
    at::Tensor reference;  // the same, without; undefined if there is none
  };
  Draws Draw(const TokenModel& model, int64_t mask_token, const Batch& batch,
             const StepInfo& info) const;
  static Bounds BoundsOf(Model& model, const Draws& draws, const Batch& batch,
                         UnitRunner& runner);

  const VrpoOptions options_;
};

}  // namespace capstan::masked_diffusion

#endif  // CAPSTAN_PLUGINS_LLADA_MASKED_DIFFUSION_VRPO_H_
