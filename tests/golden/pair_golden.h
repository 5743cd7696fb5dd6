// SPDX-License-Identifier: Apache-2.0
//
// Training on the pairs of testdata/dpo/golden.json, as its peers did.
#ifndef CAPSTAN_TESTS_GOLDEN_PAIR_GOLDEN_H_
#define CAPSTAN_TESTS_GOLDEN_PAIR_GOLDEN_H_

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "plugins/optimizer/adamw/adamw.pb.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/objective.h"
#include "tests/golden/adamw_steps.h"

namespace capstan {

using Json = nlohmann::json;

inline constexpr char kBase[] = "tests/golden/testdata/llama";
inline constexpr char kDpo[] = "tests/golden/testdata/dpo";
inline constexpr int64_t kPairsAStep = 2;

inline Json ReadJson(const std::string& path) {
  return Json::parse(std::ifstream(path));
}

// What dpo/golden.json has.
inline const Json& Golden() {
  static const Json golden = ReadJson(std::string(kDpo) + "/golden.json");
  return golden;
}

// A prompt with a completion.
struct Answer {
  std::vector<int64_t> prompt;
  std::vector<int64_t> completion;
};

// The batch of n pairs whose 2 n texts these are, padded. The keys are begin,
// begin + 1, ..
inline Batch BatchOfTexts(const std::vector<Answer>& texts, int64_t begin) {
  const auto n = static_cast<int64_t>(texts.size() / 2);
  size_t length = 0;
  for (const Answer& text : texts) {
    length = std::max(length, text.prompt.size() + text.completion.size());
  }
  Batch batch;
  const std::vector<int64_t> shape = {2 * n, static_cast<int64_t>(length)};
  batch[kInputIds] = at::full(shape, 0, at::kLong);
  batch[kLabels] = at::full(shape, kIgnoredTarget, at::kLong);
  batch[kTokenCounts] = at::full({2 * n}, 0, at::kLong);
  batch[kPairKeys] = at::full({n}, 0, at::kLong);
  batch[kSamplePosition] = at::full({n}, 0, at::kLong);
  for (int64_t row = 0; row < 2 * n; ++row) {
    const size_t prompt = texts[row].prompt.size();
    std::vector<int64_t> ids = texts[row].prompt;
    for (const int64_t id : texts[row].completion) ids.push_back(id);
    batch[kTokenCounts][row] = static_cast<int64_t>(ids.size());
    for (size_t t = 0; t < ids.size(); ++t) {
      const auto at = static_cast<int64_t>(t);
      batch[kInputIds][row][at] = ids[t];
      if (t >= prompt) batch[kLabels][row][at] = ids[t];
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    batch[kPairKeys][i] = begin + i;
    batch[kSamplePosition][i] = begin + i;
  }
  return batch;
}

// Pairs [begin, begin + n).
inline Batch BatchOf(int64_t begin, int64_t n) {
  std::vector<Answer> texts;
  for (const char* side : {"chosen", "rejected"}) {
    for (int64_t i = begin; i < begin + n; ++i) {
      const Json& pair = Golden()["pairs"][i];
      texts.push_back({pair["prompt"], pair[side]});
    }
  }
  return BatchOfTexts(texts, begin);
}

// A model with its parameters, and AdamW on those that are trained.
class Trained {
 public:
  Trained(std::unique_ptr<Model> model, double learning_rate)
      : model_(std::move(model)) {
    std::vector<at::Tensor> parameters;
    for (size_t i = 0; i < model_->parameters().size(); ++i) {
      const ParameterSpec& spec = model_->parameters()[i];
      at::Tensor value = at::empty(spec.shape, at::kFloat);
      EXPECT_TRUE(model_
                      ->InitialValue(static_cast<int>(i), 0, 0, value.numel(),
                                     value.mutable_data_ptr<float>())
                      .ok());
      parameters.push_back(value.requires_grad_(spec.trainable));
      if (spec.trainable) trained_.push_back(parameters.back());
    }
    model_->Bind(parameters);
    adamw::Config adamw;
    adamw.set_learning_rate(learning_rate);
    adamw.set_weight_decay(0.0);
    steps_ = std::make_unique<AdamWSteps>(adamw, trained_);
  }

  Model& model() { return *model_; }
  at::Tensor& trained(size_t i) { return trained_[i]; }
  const std::vector<at::Tensor>& trained() const { return trained_; }

  // `totals`: StepInfo's.
  LossSum Step(Objective& objective, const Batch& batch,
               std::vector<double> totals = {}) {
    StepInfo info;
    info.training = true;
    info.totals = std::move(totals);
    const LossSum loss = objective.Compute(*model_, batch, info, runner_);
    (loss.sum / static_cast<double>(loss.count)).backward();
    Update();
    return loss;
  }
  // By the gradients, which it resets.
  void Update() {
    steps_->Step(model_->parameters());
    for (at::Tensor& p : trained_) p.mutable_grad().reset();
  }

 private:
  const std::unique_ptr<Model> model_;
  std::vector<at::Tensor> trained_;
  std::unique_ptr<AdamWSteps> steps_;
  PlainRunner runner_;
};

// The data of a run, by its first sample; `labelled`: answers with labels.
class Pairs final : public DatasetReader {
 public:
  explicit Pairs(bool labelled = false) : labelled_(labelled) {}
  int64_t size() const override { return 20; }
  bool shuffle() const override { return false; }
  absl::Status Read(absl::Span<const int64_t>, Batch* batch) const override {
    (*batch)[kPairKeys] = at::zeros({1}, at::kLong);
    if (labelled_) (*batch)["desirable"] = at::zeros({1}, at::kLong);
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<DatasetReader>> Validation() const override {
    return nullptr;
  }

 private:
  const bool labelled_;
};

}  // namespace capstan

#endif  // CAPSTAN_TESTS_GOLDEN_PAIR_GOLDEN_H_
