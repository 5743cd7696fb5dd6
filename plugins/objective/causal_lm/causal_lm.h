// SPDX-License-Identifier: Apache-2.0
//
// Next-token prediction: the sum of -log p(token[t + 1] | tokens[0..t]), within
// each document of a packed row. Needs a TokenModel.
#ifndef CAPSTAN_PLUGINS_OBJECTIVE_CAUSAL_LM_CAUSAL_LM_H_
#define CAPSTAN_PLUGINS_OBJECTIVE_CAUSAL_LM_CAUSAL_LM_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/objective/causal_lm/causal_lm.pb.h"
#include "plugins/objective/common/causal_sampler.h"
#include "plugins/sdk/objective.h"

namespace capstan::causal_lm {

class CausalLm final : public CausalObjective {
 public:
  static absl::StatusOr<std::unique_ptr<CausalLm>> Create(const Config& config);

  absl::Status Check(Model& model, const DatasetReader& data) const override;
  int64_t CountTargets(const Batch& batch, const StepInfo& info) const override;
  bool allows_divided_rows() const override { return true; }
  // Accuracy at the targets, only if StepInfo::thorough.
  std::vector<MetricTags> metrics() const override {
    return {{"", "eval/accuracy"}};
  }
  LossSum Compute(Model& model, const Batch& batch, const StepInfo& info,
                  UnitRunner& runner) override;
  std::vector<std::pair<std::string, double>> DerivedFromLoss(
      double loss) const override;

 private:
  CausalLm(SampleOptions sampling, double label_smoothing, double noise_alpha)
      : CausalObjective(std::move(sampling)),
        label_smoothing_(label_smoothing),
        noise_alpha_(noise_alpha) {}

  absl::Status CheckModel(Model& model) const override;
  bool regularizes() const {
    return label_smoothing_ > 0.0 || noise_alpha_ > 0.0;
  }

  const double label_smoothing_, noise_alpha_;
};

}  // namespace capstan::causal_lm

#endif  // CAPSTAN_PLUGINS_OBJECTIVE_CAUSAL_LM_CAUSAL_LM_H_
