// SPDX-License-Identifier: Apache-2.0
//
// The transformer of Algorithm Distillation against PyTorch:
// testdata/ad_transformer holds what torch 2.11.0 computed in float32 on CPU
// with torch.nn.TransformerEncoder. config.json is ours.
#include "plugins/algorithm_distillation/transformer/ad_transformer.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

namespace capstan {
namespace {

using Json = nlohmann::json;

constexpr char kFolder[] = "tests/golden/testdata/ad_transformer";

class AdTransformerGoldenTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    std::ifstream file(std::string(kFolder) + "/golden.json");
    golden_ = Json::parse(file);
    ad_transformer::Config config;
    config.set_pretrained(kFolder);
    auto model = ad_transformer::AdTransformer::Create(config);
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    if (GetParam()) model_->UsePlainOperators();
    std::vector<at::Tensor> parameters;
    for (size_t i = 0; i < model_->parameters().size(); ++i) {
      at::Tensor value = at::empty(model_->parameters()[i].shape, at::kFloat);
      ASSERT_TRUE(model_
                      ->InitialValue(static_cast<int>(i), 0, 0, value.numel(),
                                     value.mutable_data_ptr<float>())
                      .ok());
      parameters.push_back(value);
    }
    model_->Bind(parameters);
  }

  // The file's samples as a batch, padded.
  HistoryInput Batch() const {
    const Json& samples = golden_["samples"];
    const int64_t batch = static_cast<int64_t>(samples.size());
    HistoryInput input;
    input.transitions =
        at::full({batch, 36, HistoryColumns().count()}, 7, at::kByte);
    input.kinds = at::full(
        {batch, 36}, static_cast<int64_t>(HistoryToken::kPadding), at::kByte);
    input.lengths = at::zeros({batch}, at::kLong);
    for (int64_t b = 0; b < batch; ++b) {
      int64_t t = 0;
      const auto add = [&](HistoryToken kind, const Json& numbers) {
        input.kinds[b][t] = static_cast<int64_t>(kind);
        for (size_t i = 0; i < numbers.size(); ++i) {
          input.transitions[b][t][static_cast<int64_t>(i)] =
              numbers[i].get<int64_t>();
        }
        ++t;
      };
      const Json& sample = samples[b];
      if (!sample["prev"].is_null()) {
        add(HistoryToken::kStart, Json::array());
        for (const Json& row : sample["prev"]) {
          add(HistoryToken::kTransition, row);
        }
        add(HistoryToken::kEnd, Json::array());
      }
      add(HistoryToken::kStart, Json::array());
      for (const Json& row : sample["current"]) {
        add(HistoryToken::kTransition, row);
      }
      add(HistoryToken::kQuery, sample["query"]);
      input.lengths[b] = t;
    }
    return input;
  }

  void ExpectGolden(const at::Tensor& logits, int64_t b) const {
    for (int64_t i = 0; i < 8; ++i) {
      const Json& wanted = i < 5 ? golden_["action_logits"][b][i]
                                 : golden_["type_logits"][b][i - 5];
      EXPECT_NEAR(logits[i].item<float>(), wanted.get<float>(), 2e-5)
          << "sample " << b << " logit " << i;
    }
  }

  Json golden_;
  std::unique_ptr<ad_transformer::AdTransformer> model_;
  PlainRunner runner_;
  const at::AutoGradMode no_gradients_{false};
};

TEST_P(AdTransformerGoldenTest, Logits) {
  const at::Tensor logits = model_->LastLogits(Batch(), runner_);
  ASSERT_EQ(logits.sizes(), at::IntArrayRef({4, 8}));
  for (int64_t b = 0; b < 4; ++b) ExpectGolden(logits[b], b);
}

TEST_P(AdTransformerGoldenTest, EachRowAlone) {
  const HistoryInput batch = Batch();
  for (int64_t b = 0; b < 4; ++b) {
    const int64_t n = batch.lengths[b].item<int64_t>();
    HistoryInput row;
    row.transitions = batch.transitions.narrow(0, b, 1).narrow(1, 0, n);
    row.kinds = batch.kinds.narrow(0, b, 1).narrow(1, 0, n);
    row.lengths = batch.lengths.narrow(0, b, 1);
    ExpectGolden(model_->LastLogits(row, runner_)[0], b);
  }
}

TEST_P(AdTransformerGoldenTest, TokenByToken) {
  const HistoryInput batch = Batch();
  const auto cache = model_->NewCache(4);
  for (int64_t t = 0; t < 36; ++t) {
    HistoryInput next;
    next.transitions = batch.transitions.narrow(1, t, 1);
    next.kinds = batch.kinds.narrow(1, t, 1);
    next.lengths = (batch.lengths - t).clamp(0, 1);
    const at::Tensor logits = model_->NextLogits(*cache, next, runner_);
    for (int64_t b = 0; b < 4; ++b) {
      if (batch.lengths[b].item<int64_t>() == t + 1) {
        ExpectGolden(logits[b], b);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Operators, AdTransformerGoldenTest, testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "plain" : "fused";
                         });

}  // namespace
}  // namespace capstan
