// SPDX-License-Identifier: Apache-2.0
//
// The losses of answers with advantages, of their tokens' log-probabilities
// alone: a few operations on [B, T].
#ifndef CAPSTAN_PLUGINS_GRPO_OBJECTIVE_LOSSES_H_
#define CAPSTAN_PLUGINS_GRPO_OBJECTIVE_LOSSES_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "plugins/grpo/objective/grpo.pb.h"

namespace capstan::grpo {

struct LossOptions {
  Loss loss = DAPO;
  double beta = 0.0;
  bool unbiased_kl = true;
  double clip_low = 0.2;
  double clip_high = 0.2;
  double clip_most = 0.0;  // 0: none
  bool sequence_ratios = false;
  int64_t max_new_tokens = 256;  // DR_GRPO's divisor
};

// With the defaults of the config's loss. FieldError for values that it can't
// have.
absl::StatusOr<LossOptions> LossOptionsOf(const Config& config);

// Of B answers of up to T tokens, all on one device. What isn't in `mask` has
// no effect, whatever it is, on loss, gradients and metrics.
struct AnswerTokens {
  at::Tensor logps;       // [B, T] float32, with gradient
  at::Tensor old_logps;   // the same when the answers were sampled
  at::Tensor reference;   // the same under the reference; only with a beta
  at::Tensor mask;        // [B, T] bool: tokens that are trained on
  at::Tensor advantages;  // [B] float32
  at::Tensor entropies;   // [B, T] float32 of the distributions, or undefined
};

struct AnswersLoss {
  at::Tensor sum;  // scalar float32 with gradient; LossCount is its count
  // [MetricNames().size(), 2] float64, as LossSum::metrics.
  at::Tensor metrics;
};

// What all answers' sums are divided by: the answers, if each counts as much
// (one without a token, too), or the tokens.
int64_t LossCount(const LossOptions& options, int64_t answers, int64_t tokens);

// As TRL 1.16's GRPOTrainer._compute_loss, with DAPO for "bnpo".
AnswersLoss LossOf(const LossOptions& options, const AnswerTokens& answers);

// TRL's names, where it has the metric: "entropy", "ratio_mean",
// "log_ratio_mean" (of absolute values); "kl" with a beta;
// "clip_ratio/low_mean" and "clip_ratio/high_mean" of losses that clip from
// below and from above: the share of the ratios where that stops the gradient
// (CISPO: shrinks it); "vespo/phi_seq_mean".
std::vector<std::string> MetricNames(const LossOptions& options);

}  // namespace capstan::grpo

#endif  // CAPSTAN_PLUGINS_GRPO_OBJECTIVE_LOSSES_H_
