// SPDX-License-Identifier: Apache-2.0
#include "plugins/grpo/objective/losses.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "plugins/sdk/lib/field_check.h"

namespace capstan::grpo {
namespace {

// Whether the ratio is kept in [1 - clip_low, 1 + clip_high].
bool ClipsBothWays(Loss loss) {
  return loss == GRPO || loss == DAPO || loss == DR_GRPO || loss == LUSPO;
}
bool ClipsHigh(Loss loss) { return ClipsBothWays(loss) || loss == CISPO; }

// Whether an answer's terms are averaged over its tokens.
bool AveragesAnswers(Loss loss) { return loss == GRPO || loss == SAPO; }

// [B, 1]. Sums are float64, so that they hardly depend on the padding.
at::Tensor RowSums(const at::Tensor& x) { return x.sum(1, true, at::kDouble); }

// The lesser of r A and clip(r) A: DeepSeekMath, equation 3; INTELLECT-2 has
// clip_most.
at::Tensor Clipped(const LossOptions& options, const at::Tensor& ratio,
                   const at::Tensor& advantages) {
  const at::Tensor clipped =
      ratio.clamp(1.0 - options.clip_low, 1.0 + options.clip_high);
  const at::Tensor most =
      options.clip_most > 0.0 ? ratio.clamp_max(options.clip_most) : ratio;
  return at::minimum(most * advantages, clipped * advantages);
}

// 4 / tau sigmoid(tau (r - 1)), whose slope at r = 1 is 1. The temperatures tau
// are the paper's and TRL's.
at::Tensor SoftRatio(const at::Tensor& ratio, const at::Tensor& advantages) {
  const at::Tensor tau = at::where(advantages.gt(0.0), 1.0, 1.05);
  return at::sigmoid((ratio - 1.0) * tau) * 4.0 / tau;
}

// phi(w) = e^lambda w^k e^(-lambda w), with w the product of an answer's
// ratios: [B, 1]. Constants and bounds are TRL's defaults, phi(1) is 1.
at::Tensor VespoWeight(const at::Tensor& log_ratio,
                       const at::Tensor& advantages) {
  constexpr double kMostLog = 20.0;
  const double least_log = std::log(1e-8);
  const at::Tensor log_w =
      RowSums(log_ratio.clamp(-kMostLog, kMostLog)).clamp(least_log, kMostLog);
  const at::Tensor w = log_w.exp();
  return at::where(advantages.ge(0.0), log_w * 2.0 + (1.0 - w) * 3.0,
                   log_w * 3.0 + (1.0 - w) * 2.0)
      .exp()
      .to(log_ratio.scalar_type());
}

// What is known of answers' tokens.
struct Ratios {
  at::Tensor logs;    // [B, T], 0 where nothing is trained on
  at::Tensor values;  // [B, T], or [B, 1] with sequence_ratios
  at::Tensor kl;      // [B, T], undefined without a beta
  at::Tensor vespo;   // [B, 1], only for VESPO
};

// The estimator k3 of the KL divergence from the reference (Schulman,
// "Approximating KL divergence", 2020).
at::Tensor KlTerms(const LossOptions& options, const AnswerTokens& answers,
                   const at::Tensor& ratio) {
  const at::Tensor apart =
      at::where(answers.mask, answers.reference - answers.logps, 0.0);
  const at::Tensor kl = apart.exp() - apart - 1.0;
  return options.unbiased_kl ? kl * ratio : kl;
}

Ratios RatiosOf(const LossOptions& options, const AnswerTokens& answers,
                const at::Tensor& tokens) {
  Ratios ratios;
  // What isn't in the mask may be anything, so it is replaced, not multiplied.
  ratios.logs = at::where(answers.mask, answers.logps - answers.old_logps, 0.0);
  const at::Tensor means =
      (RowSums(ratios.logs) / tokens).to(ratios.logs.scalar_type());
  ratios.values = (options.sequence_ratios ? means : ratios.logs).exp();
  if (options.beta != 0.0) {
    ratios.kl = KlTerms(options, answers, ratios.values);
  }
  if (options.loss == VESPO) {
    ratios.vespo =
        VespoWeight(ratios.logs.detach(), answers.advantages.unsqueeze(1));
  }
  return ratios;
}

// What is to grow, without the KL term: [B, T], or [B, 1] if an answer's tokens
// all have the same.
at::Tensor Gains(const LossOptions& options, const AnswerTokens& answers,
                 const Ratios& ratios) {
  const at::Tensor advantages = answers.advantages.unsqueeze(1);
  switch (options.loss) {
    case CISPO:
      return ratios.values.detach().clamp_max(1.0 + options.clip_high) *
             advantages * answers.logps;
    case SAPO:
      return SoftRatio(ratios.values, advantages) * advantages;
    case VESPO:
      return ratios.vespo * advantages * answers.logps;
    default:
      return Clipped(options, ratios.values, advantages);
  }
}

// A row of LossSum::metrics: of the values at `mask`, a value a token or one an
// answer.
at::Tensor Metric(const at::Tensor& values, const at::Tensor& mask) {
  return at::stack({at::where(mask, values.to(at::kDouble), 0.0).sum(),
                    mask.sum().to(at::kDouble)});
}

// In the order of MetricNames.
at::Tensor Metrics(const LossOptions& options, const AnswerTokens& answers,
                   const Ratios& ratios) {
  const at::Tensor ratio = ratios.values.detach();
  const at::Tensor advantages = answers.advantages.unsqueeze(1);
  const at::Tensor all = at::ones_like(advantages, at::kBool);
  const at::Tensor& counted = options.sequence_ratios ? all : answers.mask;
  std::vector<at::Tensor> rows = {
      answers.entropies.defined()
          ? Metric(answers.entropies, answers.mask)
          : at::zeros({2}, ratio.options().dtype(at::kDouble)),
      Metric(ratio, counted), Metric(ratios.logs.detach().abs(), answers.mask)};
  if (ratios.kl.defined()) {
    rows.push_back(Metric(ratios.kl.detach(), answers.mask));
  }
  if (ClipsBothWays(options.loss)) {
    rows.push_back(
        Metric(ratio.lt(1.0 - options.clip_low) & advantages.lt(0.0), counted));
  }
  if (ClipsHigh(options.loss)) {
    rows.push_back(Metric(
        ratio.gt(1.0 + options.clip_high) & advantages.gt(0.0), counted));
  }
  if (ratios.vespo.defined()) rows.push_back(Metric(ratios.vespo, all));
  return at::stack(rows);
}

absl::Status CheckUsed(const Config& config) {
  const Loss loss = config.loss();
  for (const auto& [set, used, name] :
       {std::make_tuple(config.has_clip_low(), ClipsBothWays(loss), "clip_low"),
        std::make_tuple(config.has_clip_high(), ClipsHigh(loss), "clip_high"),
        std::make_tuple(config.clip_most() != 0.0, ClipsBothWays(loss),
                        "clip_most"),
        // Its weights are of whole answers anyway.
        std::make_tuple(config.sequence_ratios(), loss != VESPO,
                        "sequence_ratios")}) {
    if (set && !used) {
      return FieldError(name,
                        absl::StrCat("isn't used by loss: ", Loss_Name(loss)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LossOptions> LossOptionsOf(const Config& config) {
  CAPSTAN_RETURN_IF_ERROR(CheckUsed(config));
  LossOptions options;
  options.loss = config.loss();
  if (config.has_clip_low()) options.clip_low = config.clip_low();
  options.clip_high = options.loss == CISPO ? 4.0 : options.clip_low;
  if (config.has_clip_high()) options.clip_high = config.clip_high();
  options.clip_most = config.clip_most();
  options.beta = config.beta();
  if (config.has_unbiased_kl()) options.unbiased_kl = config.unbiased_kl();
  options.sequence_ratios = config.sequence_ratios() || options.loss == LUSPO;
  if (config.max_new_tokens() > 0) {
    options.max_new_tokens = config.max_new_tokens();
  }
  CAPSTAN_RETURN_IF_ERROR(
      CheckField(options.clip_low >= 0.0 && options.clip_low <= 1.0, "clip_low",
                 "in [0, 1]", options.clip_low));
  CAPSTAN_RETURN_IF_ERROR(
      CheckField(options.clip_high >= 0.0 && std::isfinite(options.clip_high),
                 "clip_high", "0 or greater", options.clip_high));
  CAPSTAN_RETURN_IF_ERROR(CheckField(
      options.clip_most == 0.0 ||
          (options.clip_most > 1.0 + options.clip_high &&
           std::isfinite(options.clip_most)),
      "clip_most", "0 or greater than 1 + clip_high", options.clip_most));
  CAPSTAN_RETURN_IF_ERROR(
      CheckField(options.beta >= 0.0 && std::isfinite(options.beta), "beta",
                 "0 or greater", options.beta));
  return options;
}

int64_t LossCount(const LossOptions& options, int64_t answers, int64_t tokens) {
  switch (options.loss) {
    case GRPO:
    case SAPO:
    case LUSPO:
      return answers;
    case DR_GRPO:
      return answers * options.max_new_tokens;
    default:
      return tokens;
  }
}

AnswersLoss LossOf(const LossOptions& options, const AnswerTokens& answers) {
  const at::Tensor tokens = answers.mask.sum(1, true).clamp_min(1);
  const Ratios ratios = RatiosOf(options, answers, tokens);
  at::Tensor terms = -Gains(options, answers, ratios);
  if (ratios.kl.defined()) terms = terms + ratios.kl * options.beta;
  at::Tensor rows = RowSums(at::where(answers.mask, terms, 0.0));
  if (AveragesAnswers(options.loss)) rows = rows / tokens;
  AnswersLoss result;
  result.sum = rows.sum().to(at::kFloat);
  result.metrics = Metrics(options, answers, ratios);
  return result;
}

std::vector<std::string> MetricNames(const LossOptions& options) {
  std::vector<std::string> names = {"entropy", "ratio_mean", "log_ratio_mean"};
  if (options.beta != 0.0) names.push_back("kl");
  if (ClipsBothWays(options.loss)) names.push_back("clip_ratio/low_mean");
  if (ClipsHigh(options.loss)) names.push_back("clip_ratio/high_mean");
  if (options.loss == VESPO) names.push_back("vespo/phi_seq_mean");
  return names;
}

}  // namespace capstan::grpo
