// SPDX-License-Identifier: Apache-2.0
#include "plugins/dpo/objective/losses.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/expm1.h>
#include <ATen/ops/log.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/log_sigmoid.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include <cmath>

#include "plugins/objective/common/pairs.h"

namespace capstan::dpo {
namespace {

// log(1 - e^x) for x < 0 (Maechler, "Accurately computing log(1 - exp(-|a|))",
// 2012). A text that is certain is taken for almost certain, which keeps the
// odds finite.
at::Tensor LogOfRest(const at::Tensor& x) {
  constexpr double kMost = -1e-7;
  const at::Tensor a = x.clamp_max(kMost);
  // Each branch sees values that it is finite for, or its gradient would be
  // none.
  const at::Tensor small = a.lt(-M_LN2);
  return at::where(small, at::log1p(-at::where(small, a, -1.0).exp()),
                   at::log(-at::expm1(at::where(small, -0.5, a))));
}

}  // namespace

PairLosses LossesOf(const LossOptions& options, const Pairs& pairs) {
  const double beta = options.beta;
  at::Tensor chosen = pairs.chosen, rejected = pairs.rejected;
  if (IsOfMeans(options.loss)) {
    chosen = chosen / pairs.chosen_tokens.clamp_min(1.0);
    rejected = rejected / pairs.rejected_tokens.clamp_min(1.0);
  }
  // What rewards are of.
  at::Tensor chosen_score = chosen, rejected_score = rejected;
  if (NeedsReference(options.loss)) {
    chosen_score = chosen - pairs.chosen_reference;
    rejected_score = rejected - pairs.rejected_reference;
  }
  PairLosses result;
  at::Tensor log_odds;
  switch (options.loss) {
    case IPO: {
      // Equation 17, with each text's mean over its tokens as in TRL 1.16's
      // DPOTrainer._compute_loss ("ipo").
      const at::Tensor apart =
          chosen_score / pairs.chosen_tokens.clamp_min(1.0) -
          rejected_score / pairs.rejected_tokens.clamp_min(1.0);
      result.losses = (apart - 1.0 / (2.0 * beta)).square();
      break;
    }
    case ORPO:
      // Equations 4 and 7: TRL's ORPOTrainer.odds_ratio_loss.
      log_odds =
          (chosen - rejected) - (LogOfRest(chosen) - LogOfRest(rejected));
      result.losses = -at::log_sigmoid(log_odds) * beta;
      break;
    case SIMPO:
      // Equation 6: TRL's CPOTrainer.cpo_loss ("simpo").
      result.losses = PreferenceLosses(
          (chosen - rejected) * beta - options.gamma, options.label_smoothing);
      break;
    default:
      // Equation 7: TRL's DPOTrainer._compute_loss ("sigmoid"); the smoothing
      // is that of CPOTrainer.cpo_loss ("sigmoid").
      result.losses = PreferenceLosses((chosen_score - rejected_score) * beta,
                                       options.label_smoothing);
  }
  result.metrics =
      RewardMetrics(chosen_score.detach() * beta,
                    rejected_score.detach() * beta, chosen, rejected);
  if (options.loss == ORPO) {
    result.metrics.push_back(at::log_sigmoid(log_odds.detach()));
    result.metrics.push_back(log_odds.detach());
  }
  return result;
}

std::vector<std::string> MetricNames(Loss loss) {
  std::vector<std::string> names = RewardMetricNames();
  if (loss == ORPO) {
    names.push_back("log_odds_ratio");
    names.push_back("log_odds_chosen");
  }
  return names;
}

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
