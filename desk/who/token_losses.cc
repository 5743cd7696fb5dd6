// SPDX-License-Identifier: Apache-2.0
#include "desk/who/token_losses.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace capstan {

class TokenLossModel::Tokens final : public TokenModel, public RowLosses {
 public:
  explicit Tokens(TokenModel* model) : model_(*model) {}

  at::Tensor CrossEntropyRows(const TokenInput& input,
                              const at::Tensor& targets,
                              UnitRunner& runner) override {
    return model_.row_losses()->CrossEntropyRows(input, targets, runner);
  }
  at::Tensor TokenLogProbs(const TokenInput& input, const at::Tensor& targets,
                           double temperature, at::Tensor* entropy,
                           UnitRunner& runner) override {
    at::Tensor logps = model_.row_losses()->TokenLogProbs(
        input, targets, temperature, entropy, runner);
    losses_ = (-logps.detach())
                  .cpu()
                  .masked_fill(targets.cpu().lt(0),
                               -std::numeric_limits<double>::infinity());
    return logps;
  }
  bool has_token_log_probs() const override {
    return model_.row_losses()->has_token_log_probs();
  }

  at::Tensor Take() { return std::exchange(losses_, at::Tensor()); }

  at::Tensor CrossEntropySum(const TokenInput& input,
                             const TokenTargets& targets,
                             UnitRunner& runner) override {
    Note(input, targets, /*smoothing=*/0.0, runner);
    return model_.CrossEntropySum(input, targets, runner);
  }
  // The noise isn't in what is noted, as Logits has none.
  at::Tensor RegularizedSum(const TokenInput& input,
                            const TokenTargets& targets,
                            const Regularization& how,
                            UnitRunner& runner) override {
    Note(input, targets, how.smoothing, runner);
    return model_.RegularizedSum(input, targets, how, runner);
  }

  int64_t vocab_size() const override { return model_.vocab_size(); }
  int64_t max_positions() const override { return model_.max_positions(); }
  at::Tensor Logits(const TokenInput& input, UnitRunner& runner) override {
    return model_.Logits(input, runner);
  }
  at::Tensor LastLogits(const TokenInput& input, UnitRunner& runner) override {
    return model_.LastLogits(input, runner);
  }
  bool skips_other_logits() const override {
    return model_.skips_other_logits();
  }
  bool causal() const override { return model_.causal(); }
  absl::StatusOr<std::unique_ptr<KvCache>> NewCache(
      int64_t batch, int64_t max_length) const override {
    return model_.NewCache(batch, max_length);
  }
  int64_t eos_token() const override { return model_.eos_token(); }
  std::vector<int64_t> other_end_tokens() const override {
    return model_.other_end_tokens();
  }
  int64_t mask_token() const override { return model_.mask_token(); }
  std::string sampling_objective() const override {
    return model_.sampling_objective();
  }
  std::string generation_config() const override {
    return model_.generation_config();
  }
  RowLosses* row_losses() override {
    return model_.row_losses() == nullptr ? nullptr : this;
  }
  bool takes_host_targets() const override {
    return model_.takes_host_targets();
  }
  bool regularizes() const override { return model_.regularizes(); }
  TextScores* text_scores() override { return model_.text_scores(); }

 private:
  // Adds the losses to those of earlier calls for the same texts.
  void Note(const TokenInput& input, const TokenTargets& targets,
            double smoothing, UnitRunner& runner) {
    const at::NoGradGuard no_grad;
    const at::Tensor logits = model_.Logits(input, runner);
    const at::Tensor wanted = targets.tokens.to(logits.device());
    at::Tensor losses =
        at::empty_like(wanted, logits.options().dtype(at::kFloat));
    // As many as keep a piece's float32 logits small.
    constexpr int64_t kPositions = 256;
    for (int64_t begin = 0; begin < wanted.size(1); begin += kPositions) {
      const int64_t count = std::min(kPositions, wanted.size(1) - begin);
      const at::Tensor likely =
          logits.narrow(1, begin, count).to(at::kFloat).log_softmax(-1);
      const at::Tensor ids = wanted.narrow(1, begin, count).clamp_min(0);
      at::Tensor loss = -likely.gather(-1, ids.unsqueeze(-1)).squeeze(-1);
      if (smoothing > 0.0) {
        loss = (1.0 - smoothing) * loss - smoothing * likely.mean(-1);
      }
      losses.narrow(1, begin, count).copy_(loss);
    }
    if (targets.weights.defined()) {
      losses = losses * targets.weights.to(losses.device());
    }
    losses =
        losses
            .masked_fill(wanted.lt(0), -std::numeric_limits<double>::infinity())
            .cpu();
    if (!losses_.defined() || losses_.sizes() != losses.sizes()) {
      losses_ = losses;
      return;
    }
    // A position may be a target in one call alone.
    losses_ =
        at::where(losses_.isneginf(), losses,
                  at::where(losses.isneginf(), losses_, losses_ + losses));
  }

  TokenModel& model_;
  at::Tensor losses_;
};

TokenLossModel::TokenLossModel(Model* model)
    : model_(*model), tokens_(new Tokens(model->token_model())) {}

TokenLossModel::~TokenLossModel() = default;

at::Tensor TokenLossModel::Take() { return tokens_->Take(); }

TokenModel* TokenLossModel::token_model() { return tokens_.get(); }

}  // namespace capstan
