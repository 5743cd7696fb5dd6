// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "myvendor/myplugin/myplugin.pb.h"
#include "plugins/sdk/objective.h"
#include "plugins/sdk/plugin.h"

namespace myvendor::myplugin {

constexpr int64_t kNoTarget = -100;

// Next-token prediction behind a context: position t predicts token t + 1, but
// the first `context` tokens of a sample are predicted by nobody.
class MyPlugin final : public capstan::Objective {
 public:
  static absl::StatusOr<std::unique_ptr<MyPlugin>> Create(
      const Config& config) {
    if (config.context() < 0) {
      return capstan::FieldError("context", "must not be negative");
    }
    return std::unique_ptr<MyPlugin>(new MyPlugin(config.context()));
  }

  absl::Status Check(capstan::Model& model,
                     const capstan::DatasetReader& data) const override {
    const capstan::TokenModel* tokens = model.token_model();
    if (tokens == nullptr || !tokens->causal()) {
      return absl::InvalidArgumentError(
          "myvendor.myplugin needs a causal model of token sequences");
    }
    if (data.max_sequence_length() > tokens->max_positions()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the data has sequences of ", data.max_sequence_length(),
                       " tokens, the model takes ", tokens->max_positions()));
    }
    const capstan::Tokenizer* tokenizer = data.tokenizer();
    if (tokenizer != nullptr &&
        tokenizer->vocab_size() > tokens->vocab_size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the tokenizer has ", tokenizer->vocab_size(),
          " tokens, the model's vocab_size is ", tokens->vocab_size()));
    }
    return absl::OkStatus();
  }

  int64_t CountTargets(const capstan::Batch& batch,
                       const capstan::StepInfo&) const override {
    return Targets(batch).ge(0).sum().item<int64_t>();
  }

  capstan::LossSum Compute(capstan::Model& model, const capstan::Batch& batch,
                           const capstan::StepInfo& info,
                           capstan::UnitRunner& runner) override {
    capstan::TokenInput input;
    input.tokens = batch.at("input_ids");
    capstan::TokenTargets targets;
    targets.tokens = Targets(batch);
    capstan::LossSum loss;
    loss.sum = model.token_model()->CrossEntropySum(input, targets, runner);
    loss.count = CountTargets(batch, info);
    const capstan::TokenTotals totals = capstan::CountTokens(batch);
    loss.tokens = totals.tokens;
    loss.padding = totals.padding;
    return loss;
  }

  // The most probable token, again and again.
  absl::StatusOr<std::vector<int64_t>> Sample(
      capstan::Model& model, const std::vector<int64_t>& prompt,
      const capstan::SampleOptions& options,
      capstan::UnitRunner& runner) override {
    at::AutoGradMode no_gradients(false);
    capstan::TokenModel& tokens = *model.token_model();
    const int64_t limit = tokens.max_positions();
    if (prompt.empty() || static_cast<int64_t>(prompt.size()) >= limit) {
      return absl::InvalidArgumentError(
          absl::StrCat("the prompt must have 1 to ", limit - 1, " tokens"));
    }
    std::vector<int64_t> text = prompt;
    const int64_t wanted =
        options.max_new_tokens > 0 ? options.max_new_tokens : limit;
    for (int64_t i = 0; i < wanted && static_cast<int64_t>(text.size()) < limit;
         ++i) {
      if (options.stop()) return absl::CancelledError("sampling was stopped");
      capstan::TokenInput input;
      input.tokens = at::tensor(text, at::kLong).unsqueeze(0);
      const at::Tensor logits = tokens.Logits(input, runner);
      const int64_t next =
          logits.select(1, logits.size(1) - 1).argmax().item<int64_t>();
      text.push_back(next);
      if (options.on_token) options.on_token(next);
      if (options.stop_at_eos && next == tokens.eos_token()) break;
    }
    return text;
  }

 private:
  explicit MyPlugin(int64_t context) : context_(context) {}

  // [B, T]: what each position has to predict; kNoTarget: nothing.
  at::Tensor Targets(const capstan::Batch& batch) const {
    const auto given = batch.find("labels");
    const at::Tensor& labels =
        given == batch.end() ? batch.at("input_ids") : given->second;
    const int64_t length = labels.size(1);
    const at::Tensor targets =
        at::full(labels.sizes(), kNoTarget, labels.options());
    // Token `first` is the first that is predicted, by the one before it.
    const int64_t first = std::min(std::max<int64_t>(context_, 1), length);
    targets.narrow(1, first - 1, length - first)
        .copy_(labels.narrow(1, first, length - first));
    return targets;
  }

  const int64_t context_;
};

CAPSTAN_PLUGIN(Objective, MyPlugin, myvendor::myplugin::Config,
               "next-token prediction behind a context");

}  // namespace myvendor::myplugin
