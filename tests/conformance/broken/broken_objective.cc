// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "plugins/sdk/objective.h"
#include "plugins/sdk/plugin.h"
#include "tests/conformance/broken/broken_objective.pb.h"

namespace acme::broken_objective {
namespace {

using capstan::Batch;
using capstan::LossSum;
using capstan::Model;
using capstan::StepInfo;
using capstan::TokenModel;
using capstan::UnitRunner;

class BrokenObjective final : public capstan::Objective {
 public:
  static absl::StatusOr<std::unique_ptr<BrokenObjective>> Create(
      const Config& config) {
    return std::unique_ptr<BrokenObjective>(new BrokenObjective(config.bug()));
  }

  absl::Status Check(Model& model,
                     const capstan::DatasetReader&) const override {
    if (model.token_model() != nullptr) return absl::OkStatus();
    return absl::InvalidArgumentError("needs a token model");
  }

  int64_t CountTargets(const Batch& batch, const StepInfo&) const override {
    if (bug_ == Config::MISCOUNTS) return batch.at("input_ids").numel();
    return Targets(batch).ge(0).sum().item<int64_t>();
  }

  LossSum Compute(Model& model, const Batch& batch, const StepInfo& info,
                  UnitRunner& runner) override {
    capstan::PlainRunner own;
    capstan::TokenInput input;
    input.tokens = batch.at("input_ids");
    capstan::TokenTargets targets;
    targets.tokens = Targets(batch);
    if (bug_ != Config::ONLY_MINUS_100) {
      targets.tokens.masked_fill_(targets.tokens.lt(0), -100);
    } else {
      targets.tokens.masked_fill_(targets.tokens.eq(-1), 0);
    }
    LossSum loss;
    loss.sum = model.token_model()->CrossEntropySum(
        input, targets, bug_ == Config::OWN_RUNNER ? own : runner);
    loss.count = targets.tokens.ge(0).sum().item<int64_t>();
    const capstan::TokenTotals totals = capstan::CountTokens(batch);
    loss.tokens = totals.tokens;
    loss.padding = totals.padding;
    if (bug_ == Config::MEAN) {
      loss.sum = loss.sum / static_cast<double>(loss.count);
    }
    if (bug_ == Config::WIDE_LOSS) loss.sum = loss.sum.to(at::kDouble);
    if (bug_ == Config::RANDOM) loss.sum = loss.sum * (1.0 + 0.1 * ++calls_);
    if (bug_ == Config::READS_PADDING) {
      loss.sum = loss.sum + 0.01 * input.tokens.sum();
    }
    if (bug_ == Config::CONSTANT) loss.sum = loss.sum + 1.0;
    if (bug_ == Config::SURPRISE_METRIC) {
      loss.metrics = at::zeros({1, 2}, at::kDouble);
    }
    return loss;
  }

  absl::StatusOr<std::vector<int64_t>> Sample(
      Model& model, const std::vector<int64_t>& prompt,
      const capstan::SampleOptions& options, UnitRunner& runner) override {
    const at::NoGradGuard no_grad;
    std::vector<int64_t> text = prompt;
    for (int64_t i = 0; i < options.max_new_tokens; ++i) {
      if (bug_ != Config::DEAF && options.stop()) {
        return absl::CancelledError("stopped");
      }
      capstan::TokenInput input;
      input.tokens = at::tensor(text, at::kLong).unsqueeze(0);
      text.push_back(model.token_model()
                         ->LastLogits(input, runner)
                         .argmax()
                         .item<int64_t>());
    }
    return text;
  }

  std::string SaveState() const override {
    if (steps_ == 0) return "";
    return absl::StrCat("steps ", bug_ == Config::FORGETS ? 1 : steps_);
  }
  absl::Status RestoreState(absl::string_view state) override {
    const bool read = absl::ConsumePrefix(&state, "steps ") &&
                      absl::SimpleAtoi(state, &steps_);
    if (read || bug_ == Config::CREDULOUS) return absl::OkStatus();
    return absl::InvalidArgumentError("isn't a number of steps");
  }

  bool has_rollouts() const override { return true; }
  absl::Status Rollout(Model& model, std::vector<Batch>* batches,
                       const capstan::RolloutInfo& info,
                       UnitRunner& runner) override {
    static int dice = 0;
    ++steps_;
    // A rank with fewer micro-batches than others repeats the last.
    for (size_t i = 0;; ++i) {
      const bool done = i >= batches->size();
      if (info.all_done(done) || (done && bug_ == Config::LEAVES_EARLY)) break;
      at::Tensor& ids = (*batches)[done ? batches->size() - 1 : i]["input_ids"];
      const int64_t length = ids.size(1);
      capstan::TokenInput input;
      input.tokens = ids.narrow(1, 0, length - 1);
      const at::Tensor chosen =
          model.token_model()->LastLogits(input, runner).argmax(2).squeeze(1);
      if (done) continue;
      ids = ids.clone();
      const int64_t moved =
          steps_ + info.step + (bug_ == Config::OWN_DICE ? ++dice : 0);
      ids.select(1, length - 1).copy_((chosen + moved).remainder(256));
    }
    if (bug_ == Config::DROPS_ROWS) {
      for (auto& [name, tensor] : batches->front()) {
        tensor = tensor.narrow(0, 0, tensor.size(0) - 1);
      }
    }
    return absl::OkStatus();
  }

  absl::optional<capstan::OwnCurve> own_curve() const override {
    return capstan::OwnCurve{
        0.1, bug_ == Config::NO_REASON ? "" : "it trains on its own words"};
  }

 private:
  explicit BrokenObjective(Config::Bug bug) : bug_(bug) {}

  // [B, T], shifted.
  at::Tensor Targets(const Batch& batch) const {
    const auto labels = batch.find("labels");
    const bool all = bug_ == Config::IGNORES_LABELS || labels == batch.end();
    const at::Tensor& wanted = all ? batch.at("input_ids") : labels->second;
    at::Tensor targets = wanted.roll(-1, 1);
    targets.select(1, targets.size(1) - 1).fill_(-100);
    return targets;
  }

  const Config::Bug bug_;
  int calls_ = 0;
  int64_t steps_ = 0;  // rolled out
};

CAPSTAN_PLUGIN(Objective, BrokenObjective, acme::broken_objective::Config,
               "an objective with a bug");

}  // namespace
}  // namespace acme::broken_objective
