// SPDX-License-Identifier: Apache-2.0
//
// The losses of answers that are desirable or not, of their log-probabilities
// alone.
#ifndef CAPSTAN_PLUGINS_DPO_OBJECTIVE_ANSWER_LOSSES_H_
#define CAPSTAN_PLUGINS_DPO_OBJECTIVE_ANSWER_LOSSES_H_

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "plugins/dpo/objective/pair_losses.h"

namespace capstan::dpo {

// Of B answers; all are [B], on one device.
struct Answers {
  at::Tensor logps;      // float32, sums of log p over the tokens
  at::Tensor reference;  // the same under the reference, without gradient
  at::Tensor desirable;  // bool
};

struct AnswerLosses {
  at::Tensor sum;  // scalar, with gradient
  // [AnswerMetrics().size(), 2] float64, as LossSum::metrics.
  at::Tensor metrics;
};

// With r = logps - reference, a desirable answer's loss is desirable_weight *
// (1 - sigmoid(beta (r - z))), another's undesirable_weight * (1 - sigmoid(beta
// (z - r))). KTO's z estimates how far the model is from the reference
// (Ethayarajh et al., 2024, section 4.1): the mean of r over mismatched
// answers, at least 0. APO-zero's is 0 (D'Oosterlinck et al., 2024, equation
// 7). As TRL 1.16's KTOTrainer._compute_loss.
AnswerLosses LossesOf(const LossOptions& options, const Answers& answers,
                      double z);

// TRL's names.
std::vector<std::string> AnswerMetrics();

}  // namespace capstan::dpo

#endif  // CAPSTAN_PLUGINS_DPO_OBJECTIVE_ANSWER_LOSSES_H_
