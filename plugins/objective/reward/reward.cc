// SPDX-License-Identifier: Apache-2.0
#include "plugins/objective/reward/reward.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/stack.h>

#include <cmath>

#include "base/status.h"
#include "plugins/objective/common/pairs.h"
#include "plugins/objective/common/token_objective.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/lib/field_check.h"
#include "plugins/sdk/token_model.h"

namespace capstan::reward {
namespace {

absl::Status CheckScores(Model& model) {
  TokenModel* const tokens = model.token_model();
  if (tokens != nullptr && tokens->text_scores() != nullptr) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "reward needs a model whose head is a score of a text, which this model "
      "isn't: write model { [plugin/capstan.decoder.Config] { score_head: true "
      "pretrained: .. } }");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Reward>> Reward::Create(const Config& config) {
  const double centering = config.center_rewards_coefficient();
  CAPSTAN_RETURN_IF_ERROR(
      CheckField(centering >= 0.0 && std::isfinite(centering),
                 "center_rewards_coefficient", "0 or greater", centering));
  return std::unique_ptr<Reward>(new Reward(centering));
}

absl::Status Reward::Check(Model& model, const DatasetReader& data) const {
  CAPSTAN_RETURN_IF_ERROR(CheckScores(model));
  if (data.tokenizer() != nullptr) pad_ = data.tokenizer()->special_ids().pad;
  return CheckPairs(*model.token_model(), data);
}

int64_t Reward::CountTargets(const Batch& batch, const StepInfo&) const {
  return PairsOf(batch);
}

std::vector<MetricTags> Reward::metrics() const {
  return {{"train/rewards/chosen", "eval/rewards/chosen"},
          {"train/rewards/rejected", "eval/rewards/rejected"},
          {"train/rewards/accuracies", "eval/rewards/accuracies"},
          {"train/rewards/margins", "eval/rewards/margins"}};
}

at::Tensor Reward::LastTokens(const Batch& batch) const {
  const at::Tensor ids = HostTensor(batch, kInputIds).contiguous();
  const at::Tensor counts = HostTensor(batch, kTokenCounts);
  const int64_t length = ids.size(1);
  at::Tensor last = counts.defined()
                        ? counts - 1
                        : at::full({ids.size(0)}, length - 1, at::kLong);
  const int64_t* row = ids.const_data_ptr<int64_t>();
  int64_t* const out = last.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < ids.size(0); ++i, row += length) {
    while (out[i] > 0 && row[out[i]] == pad_) --out[i];
  }
  return last;
}

LossSum Reward::Compute(Model& model, const Batch& batch, const StepInfo& info,
                        UnitRunner& runner) {
  const int64_t n = PairsOf(batch);
  TokenInput input;
  input.tokens = batch.at(kInputIds);
  if (info.training) input.sample_positions = TextPositions(batch);
  const at::Tensor scores = model.token_model()->text_scores()->Scores(
      input, LastTokens(batch), runner);
  const at::Tensor chosen = scores.narrow(0, 0, n);
  const at::Tensor rejected = scores.narrow(0, n, n);
  at::Tensor lead = chosen - rejected;
  const auto margins = batch.find(kMargins);
  if (margins != batch.end()) lead = lead - margins->second;
  at::Tensor losses = -at::log_sigmoid(lead);
  if (centering_ > 0.0) {
    losses = losses + (chosen + rejected).square() * centering_;
  }
  LossSum loss;
  loss.sum = losses.sum();
  loss.count = n;
  const TokenTotals totals = CountTokens(batch);
  loss.tokens = totals.tokens;
  loss.padding = totals.padding;
  std::vector<at::Tensor> metrics;
  for (const at::Tensor& each :
       {chosen, rejected, chosen.gt(rejected), chosen - rejected}) {
    metrics.push_back(MetricRow(each.sum(), static_cast<double>(n)));
  }
  loss.metrics = at::stack(metrics);
  return loss;
}

absl::StatusOr<std::vector<int64_t>> Reward::Sample(Model& model,
                                                    const std::vector<int64_t>&,
                                                    const SampleOptions&,
                                                    UnitRunner&) {
  CAPSTAN_RETURN_IF_ERROR(CheckScores(model));
  return CheckLogits(*model.token_model());
}

}  // namespace capstan::reward
