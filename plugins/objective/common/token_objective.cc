// SPDX-License-Identifier: Apache-2.0
#include "plugins/objective/common/token_objective.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace capstan {

absl::Status CheckVocabulary(const TokenModel& model,
                             const DatasetReader& data) {
  const Tokenizer* const tokenizer = data.tokenizer();
  if (tokenizer == nullptr || tokenizer->vocab_size() <= model.vocab_size()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the tokenizer makes ids up to ", tokenizer->vocab_size() - 1,
      ", the model's vocab_size is ", model.vocab_size(),
      ": it must be at least ", tokenizer->vocab_size()));
}

absl::Status CheckLogits(TokenModel& model) {
  if (model.text_scores() == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "the model has a head of scores (a reward model): it scores texts, and "
      "neither writes any nor learns to; train it by capstan.reward, and "
      "measure it with `trainer eval`");
}

absl::Status CheckPrompt(TokenModel& model, absl::Span<const int64_t> prompt) {
  const absl::Status logits = CheckLogits(model);
  if (!logits.ok()) return logits;
  const auto given = static_cast<int64_t>(prompt.size());
  // What follows the last position of a model that writes in order has none.
  const int64_t most = model.max_positions() - (model.causal() ? 0 : 1);
  if (given == 0 || given > most) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the prompt has ", given, " tokens, it must have from 1 to ", most,
        ": the model has ", model.max_positions(), " positions"));
  }
  for (int64_t id : prompt) {
    if (id < 0 || id >= model.vocab_size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the prompt's token ", id, " isn't one of the model's ",
                       model.vocab_size()));
    }
  }
  return absl::OkStatus();
}

at::Tensor NextOf(const at::Tensor& x, int64_t last) {
  const at::Tensor next = at::full(x.sizes(), last, x.options());
  const int64_t length = x.size(1) - 1;
  next.narrow(1, 0, length).copy_(x.narrow(1, 1, length));
  return next;
}

int64_t TokensToAdd(const Batch& batch, int64_t most) {
  const at::Tensor& ids = RequiredTensor(batch, kInputIds);
  if (!ids.is_cuda() || batch.count(kTokenCounts) == 0 ||
      batch.count(kPositions) != 0) {
    return 0;
  }
  const int64_t length = ids.size(1);
  return LengthOnGpu(length, most) - length;
}

void AddPadding(const TokenModel& model, int64_t tokens, TokenInput* input,
                TokenTargets* targets) {
  if (tokens == 0) return;
  const int64_t rows = input->tokens.size(0), length = input->tokens.size(1);
  // Tokens see others behind them, unless these are another document.
  if (input->positions.defined() || !model.causal()) {
    const at::Tensor own =
        input->positions.defined()
            ? input->positions
            : at::arange(length, at::kLong).expand({rows, length});
    input->positions = at::cat(
        {own, at::arange(tokens, own.options()).expand({rows, tokens})}, 1);
  }
  const auto lengthen = [tokens](const at::Tensor& t, double value) {
    return at::constant_pad_nd(t, {0, tokens}, value);
  };
  input->tokens = lengthen(input->tokens, 0);
  targets->tokens = lengthen(targets->tokens, kIgnoredTarget);
  if (targets->weights.defined()) {
    targets->weights = lengthen(targets->weights, 0);
  }
}

at::Tensor CountCorrect(TokenModel& model, const TokenInput& input,
                        const at::Tensor& any, UnitRunner& runner) {
  const at::NoGradGuard no_gradients;
  const at::Tensor targets = any.to(input.tokens.device());
  at::Tensor counts = at::zeros({1, 2}, targets.options().dtype(at::kDouble));
  for (int64_t row = 0; row < targets.size(0); ++row) {
    TokenInput one;
    one.tokens = input.tokens.narrow(0, row, 1);
    if (input.positions.defined()) {
      one.positions = input.positions.narrow(0, row, 1);
    }
    const at::Tensor wanted = targets.narrow(0, row, 1);
    const at::Tensor chosen = model.Logits(one, runner).argmax(/*dim=*/-1);
    counts.select(1, 0).add_(chosen.eq(wanted).sum());
    counts.select(1, 1).add_(wanted.ge(0).sum());
  }
  return counts;
}

}  // namespace capstan
