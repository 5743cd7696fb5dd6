// SPDX-License-Identifier: Apache-2.0
#include "plugins/objective/causal_lm/causal_lm.h"

#include <ATen/ops/full.h>

#include <cmath>
#include <stdexcept>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/status.h"
#include "plugins/objective/common/token_objective.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/token_model.h"
// Last: its CHECK is the one to use.
#include <glog/logging.h>

namespace capstan::causal_lm {

namespace {

// An optional tensor of the batch.
at::Tensor Optional(const Batch& batch, const char* name) {
  const auto it = batch.find(name);
  return it == batch.end() ? at::Tensor() : it->second;
}

// The labels predicted at positions 0..: all but the first of each row. The
// first token of the next document is not predicted, whatever its label.
at::Tensor NextLabels(const at::Tensor& labels, const at::Tensor& positions) {
  const at::Tensor next = labels.narrow(1, 1, labels.size(1) - 1);
  if (!positions.defined()) return next;
  if (positions.sizes() != labels.sizes()) {
    throw std::invalid_argument(
        "the batch's positions have another shape than its tokens");
  }
  return next.masked_fill(positions.narrow(1, 1, next.size(1)).eq(0),
                          kIgnoredTarget);
}

// [B, T]: what is to be predicted at each position. With labels, of which many
// tokens may have none, on the CPU, if the model takes that.
at::Tensor TargetsOf(const Batch& batch, bool host) {
  const at::Tensor& ids = RequiredTensor(batch, kInputIds);
  at::Tensor labels = Optional(batch, kLabels);
  at::Tensor positions = Optional(batch, kPositions);
  if (labels.defined() && host) {
    labels = HostTensor(batch, kLabels);
    positions = HostTensor(batch, kPositions);
  } else if (!labels.defined()) {
    labels = ids;
  }
  at::Tensor targets = at::full(ids.sizes(), kIgnoredTarget, labels.options());
  targets.narrow(1, 0, ids.size(1) - 1).copy_(NextLabels(labels, positions));
  return targets;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CausalLm>> CausalLm::Create(
    const Config& config) {
  CAPSTAN_ASSIGN_OR_RETURN(SampleOptions sampling, SamplingOf(config));
  const double smoothing = config.label_smoothing();
  const double alpha = config.noise_alpha();
  if (!(smoothing >= 0.0 && smoothing < 1.0)) {
    return FieldError("label_smoothing",
                      absl::StrCat("must be in [0, 1), is ", smoothing));
  }
  // Of more, nothing of the embeddings is left.
  constexpr double kMostNoise = 1000.0;
  if (!(alpha >= 0.0 && alpha <= kMostNoise)) {
    return FieldError("noise_alpha", absl::StrCat("must be in [0, ", kMostNoise,
                                                  "], is ", alpha));
  }
  return std::unique_ptr<CausalLm>(
      new CausalLm(std::move(sampling), smoothing, alpha));
}

absl::Status CausalLm::CheckModel(Model& model) const {
  TokenModel* const tokens = model.token_model();
  if (tokens == nullptr) {
    return absl::InvalidArgumentError(
        "causal_lm needs a model of token sequences, which this model isn't");
  }
  CAPSTAN_RETURN_IF_ERROR(CheckLogits(*tokens));
  if (tokens->causal()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "causal_lm needs a model in which a token sees only what comes before "
      "it; this one sees the token that it is to predict: use "
      "capstan.masked_diffusion");
}

absl::Status CausalLm::Check(Model& model, const DatasetReader& data) const {
  CAPSTAN_RETURN_IF_ERROR(CheckModel(model));
  const TokenModel* tokens = model.token_model();
  if (regularizes() && !tokens->regularizes()) {
    return FieldError(
        label_smoothing_ > 0.0 ? "label_smoothing" : "noise_alpha",
        "needs a model that can do it, as capstan.decoder; this one can't: "
        "leave it out");
  }
  if (data.max_sequence_length() > tokens->max_positions()) {
    return WithCode(
        absl::InvalidArgumentError(absl::StrCat(
            "the data has sequences of ", data.max_sequence_length(),
            " tokens, the model's max_position_embeddings is ",
            tokens->max_positions(), ": set the data's max_length or ",
            "sequence_length to ", tokens->max_positions(), " at most")),
        "data/too-long");
  }
  return CheckVocabulary(*tokens, data);
}

int64_t CausalLm::CountTargets(const Batch& batch, const StepInfo&) const {
  const at::Tensor& ids = RequiredTensor(batch, kInputIds);
  const at::Tensor labels = HostTensor(batch, kLabels);
  const at::Tensor positions = HostTensor(batch, kPositions);
  if (labels.defined()) {
    return NextLabels(labels, positions).ge(0).sum().item<int64_t>();
  }
  // Every token is a target, except the first of each document.
  const int64_t length = ids.size(1) - 1;
  if (!positions.defined()) return ids.size(0) * length;
  return positions.narrow(1, 1, length).ne(0).sum().item<int64_t>();
}

LossSum CausalLm::Compute(Model& model, const Batch& batch,
                          const StepInfo& info, UnitRunner& runner) {
  TokenModel* tokens = model.token_model();
  CHECK(tokens != nullptr) << "Check comes first";
  // It would learn the rejected answers, too.
  if (batch.count(kPairKeys) != 0) {
    throw std::invalid_argument(
        "the data has pairs of a chosen and a rejected answer (kind: "
        "PREFERENCE), which are for capstan.dpo");
  }
  if (batch.count(kRowText) != 0) {
    throw std::invalid_argument(
        "the data has prompts without answers (kind: PROMPT), which are for "
        "capstan.grpo");
  }
  const at::Tensor& ids = RequiredTensor(batch, kInputIds);
  TokenTargets targets = {TargetsOf(batch, TakesHostTargets(*tokens))};
  LossSum loss;
  TokenInput input;
  input.tokens = ids;
  // The model then knows the documents without asking the device.
  input.positions = HostTensor(batch, kPositions);
  // Dropout and noise only in training.
  if (info.training) {
    input.sample_positions = Optional(batch, kSamplePosition);
  }
  const int64_t more = TokensToAdd(batch, tokens->max_positions());
  AddPadding(*tokens, more, &input, &targets);
  loss.sum = info.training && regularizes()
                 ? tokens->RegularizedSum(
                       input, targets,
                       {label_smoothing_, noise_alpha_, info.seed}, runner)
                 : tokens->CrossEntropySum(input, targets, runner);
  if (info.thorough) {
    loss.metrics = CountCorrect(*tokens, input, targets.tokens, runner);
  }
  loss.count = CountTargets(batch, info);
  const TokenTotals totals = CountTokens(batch);
  loss.tokens = totals.tokens;
  loss.padding = totals.padding + more * ids.size(0);
  return loss;
}

std::vector<std::pair<std::string, double>> CausalLm::DerivedFromLoss(
    double loss) const {
  return {{"perplexity", std::exp(loss)}};
}

}  // namespace capstan::causal_lm
