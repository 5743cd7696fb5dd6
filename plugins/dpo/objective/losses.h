// SPDX-License-Identifier: Apache-2.0
//
// The losses of pairs of texts, and of answers that are desirable or not, of
// their log-probabilities alone.
#ifndef CAPSTAN_PLUGINS_DPO_OBJECTIVE_LOSSES_H_
#define CAPSTAN_PLUGINS_DPO_OBJECTIVE_LOSSES_H_

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "plugins/dpo/objective/dpo.pb.h"

namespace capstan::dpo {

struct LossOptions {
  Loss loss = SIGMOID;
  double beta = 0.1;
  double label_smoothing = 0.0;
  double gamma = 0.5;
  double desirable_weight = 1.0;
  double undesirable_weight = 1.0;
};

// Whether the loss compares with a reference.
inline bool NeedsReference(Loss loss) { return loss != ORPO && loss != SIMPO; }
// Whether it is of answers with labels.
inline bool IsOfAnswers(Loss loss) {
  return loss == KTO || loss == APO_ZERO_UNPAIRED;
}
// Whether the loss is of a text's mean log-probability a token, and logps/* are
// these.
inline bool IsOfMeans(Loss loss) { return loss == ORPO || loss == SIMPO; }

// Of B pairs; all are [B] float32. logps: sums of log p over a completion's
// tokens; tokens: their number.
struct Pairs {
  at::Tensor chosen;
  at::Tensor rejected;
  at::Tensor chosen_tokens;
  at::Tensor rejected_tokens;
  // Under the reference, without gradient; undefined if there is none.
  at::Tensor chosen_reference;
  at::Tensor rejected_reference;
};

struct PairLosses {
  at::Tensor losses;  // [B], with gradient
  // Without gradient, [B] each, in the order of MetricNames.
  std::vector<at::Tensor> metrics;
};

// For ORPO without its likelihood of the chosen texts, which isn't a pair's.
PairLosses LossesOf(const LossOptions& options, const Pairs& pairs);

// TRL's names.
std::vector<std::string> MetricNames(Loss loss);

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

#endif  // CAPSTAN_PLUGINS_DPO_OBJECTIVE_LOSSES_H_
