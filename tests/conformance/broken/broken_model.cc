// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>

#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/random.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/plugin.h"
#include "tests/conformance/broken/broken_model.pb.h"

namespace acme::broken_model {
namespace {

using capstan::KvCache;
using capstan::ParameterSpec;
using capstan::TokenInput;
using capstan::TokenTargets;
using capstan::UnitRunner;

enum { kEmbed, kHead };
constexpr int64_t kVocabulary = 31;
constexpr int64_t kHidden = 6;

// The embeddings of the tokens so far.
struct Past final : KvCache {
  int64_t length() const override { return tokens; }
  int64_t tokens = 0;
  at::Tensor embedded;  // [B, tokens, kHidden]
};

class BrokenModel final : public capstan::Model, public capstan::TokenModel {
 public:
  static absl::StatusOr<std::unique_ptr<BrokenModel>> Create(
      const Config& config) {
    return std::unique_ptr<BrokenModel>(new BrokenModel(config.bug()));
  }

  const std::vector<ParameterSpec>& parameters() const override {
    return specs_;
  }
  const std::vector<std::string>& units() const override { return units_; }
  absl::Status InitialValue(int index, uint64_t seed, int64_t begin,
                            int64_t count, float* out) const override {
    const int64_t from = bug_ == Config::BY_PIECES ? 0 : begin;
    capstan::FillNormal(capstan::RandomKey(seed, units_[index]), from, count,
                        0.0f, 0.7f, out);
    return absl::OkStatus();
  }
  void Bind(std::vector<at::Tensor> parameters) override {
    bound_ = std::move(parameters);
    if (bug_ == Config::COPIES_AT_BIND) bound_[kHead] = bound_[kHead].clone();
  }
  absl::Status SaveConfig(const std::string& folder,
                          c10::ScalarType) const override {
    const char* const name =
        bug_ == Config::NO_CONFIG ? "/config.txt" : "/config.json";
    std::ofstream(folder + name) << "{}\n";
    return absl::OkStatus();
  }
  std::vector<capstan::UnitMemory> PlanUnits(int64_t, int64_t,
                                             c10::ScalarType) const override {
    return std::vector<capstan::UnitMemory>(bug_ == Config::HALF_A_PLAN ? 1
                                                                        : 2);
  }
  capstan::TokenModel* token_model() override { return this; }

  int64_t vocab_size() const override { return kVocabulary; }
  int64_t max_positions() const override { return 16; }

  at::Tensor Logits(const TokenInput& input, UnitRunner& runner) override {
    return runner.Run(
        kHead, Context(input, runner),
        [this, head = bound_[kHead]](const at::Tensor& x) {
          const at::Tensor logits = at::matmul(x, head.t());
          return bug_ == Config::WIDE_LOGITS ? logits.to(at::kFloat) : logits;
        });
  }

  at::Tensor CrossEntropySum(const TokenInput& input,
                             const TokenTargets& targets,
                             UnitRunner& runner) override {
    if (at::GradMode::is_enabled()) trained_ += input.tokens.numel();
    const at::Tensor loss = runner.Run(
        kHead, Context(input, runner),
        [this, targets, head = bound_[kHead]](const at::Tensor& x) {
          const at::Tensor wanted = bug_ == Config::ONLY_MINUS_100
                                        ? targets.tokens.ne(-100)
                                        : targets.tokens.ge(0);
          at::Tensor losses =
              at::log_softmax(at::matmul(x, head.t()).to(at::kFloat), -1)
                  .gather(2, targets.tokens.clamp_min(0).unsqueeze(2))
                  .squeeze(2)
                  .neg()
                  .mul(wanted);
          if (targets.weights.defined() && bug_ != Config::UNWEIGHTED) {
            losses = losses * targets.weights;
          }
          if (bug_ == Config::COUNTS_RUNS) losses = losses * ++runs_;
          return losses.sum();
        });
    if (bug_ != Config::OUTSIDE_UNITS) return loss;
    return loss + bound_[kEmbed].sum().to(at::kFloat);
  }

  absl::StatusOr<std::unique_ptr<KvCache>> NewCache(int64_t,
                                                    int64_t) const override {
    return std::make_unique<Past>();
  }

  // The number of tokens trained on.
  std::string SaveState() const override {
    return trained_ == 0 ? "" : absl::StrCat("trained ", trained_);
  }
  absl::Status RestoreState(absl::string_view state) override {
    if (bug_ == Config::FORGETS_STATE) return absl::OkStatus();
    const bool read = absl::ConsumePrefix(&state, "trained ") &&
                      absl::SimpleAtoi(state, &trained_);
    if (read || bug_ == Config::CREDULOUS) return absl::OkStatus();
    return absl::InvalidArgumentError("isn't a number of tokens");
  }

 private:
  explicit BrokenModel(Config::Bug bug)
      : bug_(bug), units_({"embed", "head"}), specs_(2) {
    for (const int i : {kEmbed, kHead}) {
      specs_[i].name = units_[bug == Config::ONE_NAME ? 0 : i] + ".weight";
      specs_[i].shape = {kVocabulary, kHidden};
      specs_[i].unit = bug == Config::WRONG_UNIT ? 0 : i;
    }
  }

  // [B, T, kHidden]: at each position the mean of the embeddings up to it, from
  // its document's beginning on.
  at::Tensor Context(const TokenInput& input, UnitRunner& runner) {
    at::Tensor embedded = runner.Run(
        kEmbed, input.tokens,
        [this, embed = bound_[kEmbed]](const at::Tensor& tokens) {
          return at::embedding(
              bug_ == Config::NO_GRADIENT ? embed.detach() : embed, tokens);
        });
    if (bug_ == Config::MIXES_ROWS) {
      embedded = embedded + embedded.mean(0, /*keepdim=*/true);
    }
    if (bug_ == Config::LOOKS_AHEAD) embedded = embedded.roll(-1, 1);
    const int64_t fresh = input.tokens.size(1);
    if (auto* const past = static_cast<Past*>(input.cache)) {
      if (past->embedded.defined() && bug_ != Config::FORGETS) {
        embedded = at::cat({past->embedded, embedded}, 1);
      }
      past->embedded = embedded;
      past->tokens += fresh;
    }
    const int64_t length = embedded.size(1);
    // sees[b, i, j]: whether position i sees position j.
    at::Tensor sees = at::ones_like(embedded.select(2, 0).detach())
                          .unsqueeze(1)
                          .expand({-1, length, -1})
                          .tril();
    if (input.positions.defined() && bug_ != Config::IGNORES_POSITIONS) {
      const at::Tensor document = input.positions.eq(0).cumsum(1);
      sees = sees * document.unsqueeze(2).eq(document.unsqueeze(1));
    }
    return at::matmul(sees / sees.sum(2, /*keepdim=*/true), embedded)
        .narrow(1, length - fresh, fresh);
  }

  const Config::Bug bug_;
  const std::vector<std::string> units_;
  std::vector<ParameterSpec> specs_;
  std::vector<at::Tensor> bound_;
  double runs_ = 0.0;
  int64_t trained_ = 0;
};

CAPSTAN_PLUGIN(Model, BrokenModel, acme::broken_model::Config,
               "a model with a bug");

}  // namespace
}  // namespace acme::broken_model
