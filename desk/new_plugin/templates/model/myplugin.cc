// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/matmul.h>

#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "myvendor/myplugin/myplugin.pb.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/plugin.h"

namespace myvendor::myplugin {

enum Unit { kEmbedUnit, kHeadUnit };
enum Parameter { kEmbed, kHead };

// How many positions were seen: all that this model needs of the past.
class Position final : public capstan::KvCache {
 public:
  int64_t length() const override { return length_; }
  void Advance(int64_t tokens) { length_ += tokens; }

 private:
  int64_t length_ = 0;
};

// The smallest language model there is: each token by itself predicts the
// next. logits[b, t] = head * embed[tokens[b, t]], with embed and head of
// shape [vocab_size, hidden_size].
class MyPlugin final : public capstan::Model, public capstan::TokenModel {
 public:
  static absl::StatusOr<std::unique_ptr<MyPlugin>> Create(
      const Config& config) {
    for (const auto& [field, value] :
         {std::pair<const char*, int64_t>{"vocab_size", config.vocab_size()},
          {"hidden_size", config.hidden_size()},
          {"max_position_embeddings", config.max_position_embeddings()}}) {
      if (value <= 0) {
        return capstan::FieldError(field, "must be greater than 0");
      }
    }
    return std::unique_ptr<MyPlugin>(new MyPlugin(config));
  }

  const std::vector<capstan::ParameterSpec>& parameters() const override {
    return specs_;
  }
  const std::vector<std::string>& units() const override { return units_; }

  absl::Status InitialValue(int index, uint64_t seed, int64_t begin,
                            int64_t count, float* out) const override {
    capstan::FillNormal(capstan::RandomKey(seed, specs_[index].name), begin,
                        count, /*mean=*/0.0f, /*stddev=*/0.1f, out);
    return absl::OkStatus();
  }

  void Bind(std::vector<at::Tensor> parameters) override {
    bound_ = std::move(parameters);
  }

  absl::Status SaveConfig(const std::string& folder,
                          c10::ScalarType dtype) const override {
    const std::string path = absl::StrCat(folder, "/config.json");
    std::ofstream file(path);
    file << "{\n  \"model_type\": \"myplugin\",\n  \"torch_dtype\": \""
         << (dtype == c10::ScalarType::Float ? "float32" : "bfloat16")
         << "\",\n  \"vocab_size\": " << config_.vocab_size()
         << ",\n  \"hidden_size\": " << config_.hidden_size()
         << ",\n  \"max_position_embeddings\": "
         << config_.max_position_embeddings() << "\n}\n";
    file.close();
    if (file) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat(path, " can't be written"));
  }

  capstan::TokenModel* token_model() override { return this; }
  int64_t vocab_size() const override { return config_.vocab_size(); }
  int64_t max_positions() const override {
    return config_.max_position_embeddings();
  }

  at::Tensor Logits(const capstan::TokenInput& input,
                    capstan::UnitRunner& runner) override {
    if (input.cache != nullptr) {
      static_cast<Position*>(input.cache)->Advance(input.tokens.size(1));
    }
    return runner.Run(kHeadUnit, Embedded(input, runner),
                      [head = bound_[kHead]](const at::Tensor& x) {
                        return at::matmul(x, head.t());
                      });
  }

  at::Tensor CrossEntropySum(const capstan::TokenInput& input,
                             const capstan::TokenTargets& targets,
                             capstan::UnitRunner& runner) override {
    // By value: the body may run a second time, in backward.
    return runner.Run(
        kHeadUnit, Embedded(input, runner),
        [head = bound_[kHead], targets](const at::Tensor& x) {
          const at::Tensor logits = at::matmul(x, head.t()).to(at::kFloat);
          constexpr int64_t kNone = -100;
          const at::Tensor wanted =
              targets.tokens.masked_fill(targets.tokens.lt(0), kNone);
          at::Tensor losses =
              at::cross_entropy_loss(logits.flatten(0, 1), wanted.flatten(),
                                     /*weight=*/{}, at::Reduction::None, kNone);
          if (targets.weights.defined()) {
            losses = losses * targets.weights.flatten();
          }
          return losses.sum();
        });
  }

  absl::StatusOr<std::unique_ptr<capstan::KvCache>> NewCache(
      int64_t, int64_t) const override {
    return std::make_unique<Position>();
  }

 private:
  explicit MyPlugin(const Config& config)
      : config_(config), units_({"embed", "head"}), specs_(2) {
    const std::vector<int64_t> shape = {config.vocab_size(),
                                        config.hidden_size()};
    specs_[kEmbed].name = "embed.weight";
    specs_[kEmbed].shape = shape;
    specs_[kEmbed].unit = kEmbedUnit;
    specs_[kEmbed].read_in_backward = false;
    specs_[kHead].name = "head.weight";
    specs_[kHead].shape = shape;
    specs_[kHead].unit = kHeadUnit;
  }

  // [B, T, hidden_size]
  at::Tensor Embedded(const capstan::TokenInput& input,
                      capstan::UnitRunner& runner) const {
    return runner.Run(kEmbedUnit, input.tokens,
                      [embed = bound_[kEmbed]](const at::Tensor& tokens) {
                        return at::embedding(embed, tokens);
                      });
  }

  const Config config_;
  const std::vector<std::string> units_;
  std::vector<capstan::ParameterSpec> specs_;
  std::vector<at::Tensor> bound_;
};

CAPSTAN_PLUGIN(Model, MyPlugin, myvendor::myplugin::Config,
               "a bigram language model");

}  // namespace myvendor::myplugin
