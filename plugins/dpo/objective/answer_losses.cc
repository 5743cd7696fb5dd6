// SPDX-License-Identifier: Apache-2.0
#include "plugins/dpo/objective/answer_losses.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

namespace capstan::dpo {

AnswerLosses LossesOf(const LossOptions& options, const Answers& answers,
                      double z) {
  const at::Tensor ratio = answers.logps - answers.reference;
  const at::Tensor& good = answers.desirable;
  const at::Tensor apart = (ratio - z) * options.beta;
  // 1 - sigmoid(x) is sigmoid(-x).
  const at::Tensor losses =
      at::where(good, at::sigmoid(-apart) * options.desirable_weight,
                at::sigmoid(apart) * options.undesirable_weight);
  AnswerLosses result;
  result.sum = losses.sum();
  const at::Tensor reward = (ratio.detach() * options.beta).to(at::kDouble);
  const at::Tensor logps = answers.logps.detach().to(at::kDouble);
  const at::Tensor weights[] = {good.to(at::kDouble), (~good).to(at::kDouble)};
  std::vector<at::Tensor> metrics;
  for (const at::Tensor& each : {reward, logps}) {
    for (const at::Tensor& weight : weights) {
      metrics.push_back(at::stack({(each * weight).sum(), weight.sum()}));
    }
  }
  const at::Tensor count = at::ones_like(logps).sum();
  metrics.push_back(at::stack({count * z, count}));
  result.metrics = at::stack(metrics);
  return result;
}

std::vector<std::string> AnswerMetrics() {
  return {"rewards/chosen", "rewards/rejected", "logps/chosen",
          "logps/rejected", "kl"};
}

}  // namespace capstan::dpo
