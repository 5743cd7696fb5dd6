// SPDX-License-Identifier: Apache-2.0
//
// The two losses of Algorithm Distillation on four samples of different
// lengths, and that a row's result is its own: the original reads position -1
// of rows that are padded on the right (its defect 4).
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "plugins/algorithm_distillation/objective/algorithm_distillation.h"
#include "plugins/algorithm_distillation/transformer/ad_transformer.h"

namespace capstan {
namespace {

using Json = nlohmann::json;
using Transition = std::vector<uint8_t>;

const std::string kFolder = "tests/golden/testdata/ad_transformer";

struct Row {
  std::vector<Transition> transitions;
  std::vector<HistoryToken> kinds;

  void Add(HistoryToken kind, Transition transition = {}) {
    transition.resize(HistoryColumns().count());
    transitions.push_back(transition);
    kinds.push_back(kind);
  }
};

Row RowOf(const Json& sample) {
  Row row;
  if (!sample["prev"].is_null()) {
    row.Add(HistoryToken::kStart);
    for (const Json& t : sample["prev"]) {
      row.Add(HistoryToken::kTransition, t.get<Transition>());
    }
    row.Add(HistoryToken::kEnd);
  }
  row.Add(HistoryToken::kStart);
  for (const Json& t : sample["current"]) {
    row.Add(HistoryToken::kTransition, t.get<Transition>());
  }
  row.Add(HistoryToken::kQuery, sample["query"].get<Transition>());
  return row;
}

Batch BatchOf(const std::vector<Json>& samples) {
  std::vector<Row> rows;
  size_t longest = 0;
  for (const Json& sample : samples) {
    rows.push_back(RowOf(sample));
    longest = std::max(longest, rows.back().kinds.size());
  }
  const int64_t count = static_cast<int64_t>(rows.size());
  const int64_t tokens = static_cast<int64_t>(longest);
  Batch batch;
  batch["transitions"] =
      at::zeros({count, tokens, HistoryColumns().count()}, at::kByte);
  batch["kinds"] =
      at::full({count, tokens}, static_cast<int>(HistoryToken::kPadding),
               at::TensorOptions(at::kByte));
  for (const char* name : {"lengths", "action", "token_type"}) {
    batch[name] = at::empty({count}, at::kLong);
  }
  for (int64_t i = 0; i < count; ++i) {
    const Row& row = rows[i];
    for (size_t t = 0; t < row.kinds.size(); ++t) {
      batch["kinds"][i][t].fill_(static_cast<int>(row.kinds[t]));
      for (int c = 0; c < HistoryColumns().count(); ++c) {
        batch["transitions"][i][t][c].fill_(row.transitions[t][c]);
      }
    }
    const int64_t type = samples[i]["target_type"];
    const int64_t action = samples[i]["target_action"];
    batch["lengths"][i].fill_(static_cast<int64_t>(row.kinds.size()));
    batch["token_type"][i].fill_(type);
    // The original has no loss of the action where a region ends.
    batch["action"][i].fill_(type == 0 ? action : -100);
  }
  return batch;
}

class AdLossTest : public testing::Test {
 protected:
  void SetUp() override {
    golden_ = Json::parse(std::ifstream(kFolder + "/golden.json"));
    ad_transformer::Config config;
    config.set_pretrained(kFolder);
    auto model = ad_transformer::AdTransformer::Create(config);
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    std::vector<at::Tensor> parameters;
    for (size_t i = 0; i < model_->parameters().size(); ++i) {
      at::Tensor value = at::empty(model_->parameters()[i].shape, at::kFloat);
      ASSERT_TRUE(model_
                      ->InitialValue(static_cast<int>(i), 0, 0, value.numel(),
                                     value.mutable_data_ptr<float>())
                      .ok());
      parameters.push_back(value);
    }
    model_->Bind(std::move(parameters));
    objective_ = *algorithm_distillation::AlgorithmDistillation::Create({});
  }

  LossSum Loss(const std::vector<Json>& samples) {
    const at::NoGradGuard no_gradients;
    const Batch batch = BatchOf(samples);
    StepInfo info;
    info.totals = objective_->StepTotals(batch, info);
    return objective_->Compute(*model_, batch, info, runner_);
  }

  Json golden_;
  std::unique_ptr<ad_transformer::AdTransformer> model_;
  std::unique_ptr<algorithm_distillation::AlgorithmDistillation> objective_;
  PlainRunner runner_;
};

double Mean(const LossSum& loss, int metric) {
  return loss.metrics[metric][0].item<double>() /
         loss.metrics[metric][1].item<double>();
}

TEST_F(AdLossTest, LossesAreTorchs) {
  const LossSum loss = Loss(golden_["samples"]);
  EXPECT_EQ(loss.count, 4);
  EXPECT_NEAR(loss.sum.item<double>() / 4, golden_["loss"].get<double>(), 2e-6);
  EXPECT_NEAR(Mean(loss, 0), golden_["loss_action"].get<double>(), 2e-6);
  EXPECT_NEAR(Mean(loss, 2), golden_["loss_token_type"].get<double>(), 2e-6);
  EXPECT_EQ(loss.metrics[0][1].item<double>(), 3.0);
}

TEST_F(AdLossTest, TheBatchIsEachRowAlone) {
  const std::vector<Json> samples = golden_["samples"];
  at::Tensor sum = at::zeros({4, 2}, at::kDouble);
  for (const Json& sample : samples) sum.add_(Loss({sample}).metrics);
  EXPECT_TRUE(sum.allclose(Loss(samples).metrics, 1e-6, 1e-6));
}

}  // namespace
}  // namespace capstan
