// SPDX-License-Identifier: Apache-2.0
//
// Minor version 0's Objective lacks unit() and DerivedFromLoss(), which the
// trainer calls, and its LossSum two fields, which the trainer reads.
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>

#include <memory>
#include <vector>

#include "plugins/sdk/objective.h"
#include "plugins/sdk/plugin.h"
#include "tests/plugins/minor0/old_next_token.pb.h"

static_assert(capstan::kPluginApiMinor == 0, "not the frozen SDK");

namespace acme {
namespace old_next_token {

class OldNextToken final : public capstan::Objective {
 public:
  static absl::StatusOr<std::unique_ptr<OldNextToken>> Create(const Config&) {
    return std::make_unique<OldNextToken>();
  }

  absl::Status Check(capstan::Model& model,
                     const capstan::DatasetReader& data) const override {
    if (model.token_model() != nullptr && data.size() > 0) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError("needs a model of tokens, and some data");
  }

  int64_t CountTargets(const capstan::Batch& batch,
                       const capstan::StepInfo&) const override {
    const at::Tensor& ids = batch.at("input_ids");
    return ids.size(0) * (ids.size(1) - 1);
  }

  capstan::LossSum Compute(capstan::Model& model, const capstan::Batch& batch,
                           const capstan::StepInfo& info,
                           capstan::UnitRunner& runner) override {
    const at::Tensor& ids = batch.at("input_ids");
    const int64_t length = ids.size(1);
    capstan::TokenTargets targets;
    targets.tokens = at::full(ids.sizes(), -100, ids.options());
    targets.tokens.narrow(1, 0, length - 1).copy_(ids.narrow(1, 1, length - 1));
    capstan::TokenInput input;
    input.tokens = ids;
    capstan::LossSum loss;
    loss.sum = model.token_model()->CrossEntropySum(input, targets, runner);
    loss.count = CountTargets(batch, info);
    loss.tokens = ids.numel();
    return loss;
  }

  absl::StatusOr<std::vector<int64_t>> Sample(capstan::Model&,
                                              const std::vector<int64_t>&,
                                              const capstan::SampleOptions&,
                                              capstan::UnitRunner&) override {
    return absl::UnimplementedError("doesn't sample");
  }
};

CAPSTAN_PLUGIN(Objective, OldNextToken, acme::old_next_token::Config,
               "next tokens of plugin API 1.0");

}  // namespace old_next_token
}  // namespace acme
