// SPDX-License-Identifier: Apache-2.0
#include "plugins/objective/reward/reward.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "plugins/sdk/idle_for_test.h"
#include "plugins/sdk/token_model.h"
#include "text/chat_template/fake_tokenizer.h"

namespace capstan::reward {
namespace {

using ::testing::HasSubstr;

// A text's score is its last token's id over 4, times a weight.
class FakeScorer final : public IdleModel,
                         public TokenModel,
                         public TextScores {
 public:
  explicit FakeScorer(bool scores = true) : IdleModel({}, 0), scores_(scores) {}

  TokenModel* token_model() override { return this; }
  int64_t vocab_size() const override { return vocab; }
  int64_t max_positions() const override { return 8; }
  absl::StatusOr<std::unique_ptr<KvCache>> NewCache(int64_t,
                                                    int64_t) const override {
    return absl::UnimplementedError("has none");
  }
  at::Tensor Logits(const TokenInput&, UnitRunner&) override { return {}; }
  at::Tensor CrossEntropySum(const TokenInput&, const TokenTargets&,
                             UnitRunner&) override {
    return {};
  }
  TextScores* text_scores() override { return scores_ ? this : nullptr; }
  at::Tensor Scores(const TokenInput& input, const at::Tensor& last,
                    UnitRunner&) override {
    input_ = input;
    return input.tokens.gather(1, last.unsqueeze(1)).squeeze(1) / 4.0 * weight;
  }

  at::Tensor weight = at::tensor(1.0f).set_requires_grad(true);
  TokenInput input_;
  int64_t vocab = 16;

 private:
  const bool scores_;
};

class Data final : public DatasetReader {
 public:
  explicit Data(int64_t length) : length_(length) {}
  int64_t size() const override { return 1; }
  bool shuffle() const override { return false; }
  int64_t max_sequence_length() const override { return length_; }
  absl::Status Read(absl::Span<const int64_t>, Batch* batch) const override {
    (*batch)[kPairKeys] = at::zeros({1}, at::kLong);
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<DatasetReader>> Validation() const override {
    return nullptr;
  }
  const Tokenizer* tokenizer() const override { return tokens; }

  const Tokenizer* tokens = nullptr;

 private:
  const int64_t length_;
};

// Texts of 3 tokens whose second is the last; the third is padding.
Batch BatchOf(const std::vector<int64_t>& chosen,
              const std::vector<int64_t>& rejected) {
  std::vector<int64_t> ids;
  for (const auto& side : {chosen, rejected}) {
    for (const int64_t id : side) {
      for (const int64_t token : {int64_t{1}, id, int64_t{15}}) {
        ids.push_back(token);
      }
    }
  }
  const auto n = static_cast<int64_t>(chosen.size());
  Batch batch;
  batch[kInputIds] = at::tensor(ids, at::kLong).view({2 * n, 3});
  batch[kLabels] = batch[kInputIds];
  batch[kTokenCounts] = at::tensor(std::vector<int64_t>(2 * n, 2), at::kLong);
  batch[kPairKeys] = batch[kSamplePosition] = at::arange(n, at::kLong);
  return batch;
}

std::unique_ptr<Reward> Made(double centering = 0.0) {
  Config config;
  config.set_center_rewards_coefficient(centering);
  auto objective = Reward::Create(config);
  EXPECT_TRUE(objective.ok()) << objective.status();
  return *std::move(objective);
}

StepInfo Training() {
  StepInfo info;
  info.training = true;
  return info;
}

TEST(RewardTest, LossMetricsAndCounts) {
  FakeScorer model;
  PlainRunner runner;
  const LossSum loss =
      Made(0.25)->Compute(model, BatchOf({8, 4}, {4, 12}), Training(), runner);
  const auto pair = [](double chosen, double rejected) {
    const double sum = chosen + rejected;
    return std::log1p(std::exp(rejected - chosen)) + 0.25 * sum * sum;
  };
  EXPECT_NEAR(loss.sum.item<double>(), pair(2, 1) + pair(1, 3), 1e-5);
  EXPECT_EQ(loss.count, 2);
  EXPECT_EQ(loss.tokens, 8);
  EXPECT_EQ(loss.padding, 4);
  const double sums[] = {3.0, 4.0, 1.0, -1.0};
  ASSERT_EQ(Made()->metrics().size(), 4u);
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(loss.metrics[i][0].item<double>(), sums[i], 1e-6) << i;
    EXPECT_EQ(loss.metrics[i][1].item<double>(), 2.0);
  }
  // Each text has keys of its own for dropout.
  EXPECT_TRUE(model.input_.sample_positions.equal(
      at::tensor(std::vector<int64_t>{0, 2, 1, 3}, at::kLong)));
}

TEST(RewardTest, ThePreferredTextLeadsByTheMargin) {
  FakeScorer model;
  PlainRunner runner;
  Batch batch = BatchOf({8, 4}, {4, 12});
  batch[kMargins] = at::tensor({0.5f, 0.0f});
  const LossSum loss = Made()->Compute(model, batch, Training(), runner);
  const auto pair = [](double lead) { return std::log1p(std::exp(-lead)); };
  EXPECT_NEAR(loss.sum.item<double>(), pair(2 - 1 - 0.5) + pair(1 - 3), 1e-5);
  EXPECT_NEAR(loss.metrics[3][0].item<double>(), (2 - 1) + (1 - 3), 1e-6);
}

TEST(RewardTest, ScoresAreReadBeforePads) {
  FakeScorer model;
  PlainRunner runner;
  FakeTokenizer tokenizer(std::vector<std::string>{});
  tokenizer.set_special_ids({-1, 9, 9});  // pads are eos
  Data data(16);
  data.tokens = &tokenizer;
  const auto objective = Made();
  model.vocab = tokenizer.vocab_size();
  ASSERT_TRUE(objective->Check(model, data).ok());
  // The first token, 1, in place of the second.
  const LossSum loss =
      objective->Compute(model, BatchOf({9}, {4}), Training(), runner);
  EXPECT_NEAR(loss.metrics[0][0].item<double>(), 0.25, 1e-6);
  EXPECT_NEAR(loss.metrics[1][0].item<double>(), 1.0, 1e-6);
}

TEST(RewardTest, PartsAddUpToTheWhole) {
  FakeScorer model;
  PlainRunner runner;
  const auto objective = Made(0.1);
  const LossSum whole =
      objective->Compute(model, BatchOf({8, 4}, {4, 12}), Training(), runner);
  const LossSum first =
      objective->Compute(model, BatchOf({8}, {4}), Training(), runner);
  const LossSum second =
      objective->Compute(model, BatchOf({4}, {12}), Training(), runner);
  EXPECT_NEAR(whole.sum.item<double>(), (first.sum + second.sum).item<double>(),
              1e-6);
  EXPECT_EQ(whole.count, first.count + second.count);
  EXPECT_TRUE(whole.metrics.allclose(first.metrics + second.metrics));
}

TEST(RewardTest, TellsWhatDoesntFit) {
  Config config;
  config.set_center_rewards_coefficient(-1.0);
  EXPECT_THAT(std::string(Reward::Create(config).status().message()),
              HasSubstr("must be 0 or greater, is -1"));
  FakeScorer writer(/*scores=*/false), scorer;
  EXPECT_TRUE(Made()->Check(scorer, Data(16)).ok());
  EXPECT_THAT(std::string(Made()->Check(writer, Data(16)).message()),
              HasSubstr("score_head: true"));
  EXPECT_THAT(std::string(Made()->Check(scorer, Data(20)).message()),
              HasSubstr("max_length to 8 at most"));
  PlainRunner runner;
  EXPECT_THAT(std::string(Made()
                              ->Sample(scorer, {1, 2}, SampleOptions(), runner)
                              .status()
                              .message()),
              HasSubstr("scores texts"));
  Batch batch = BatchOf({8}, {4});
  batch.erase(kPairKeys);
  EXPECT_THROW(Made()->Compute(scorer, batch, Training(), runner),
               std::invalid_argument);
}

}  // namespace
}  // namespace capstan::reward
