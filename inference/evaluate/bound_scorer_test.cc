// SPDX-License-Identifier: Apache-2.0
#include "inference/evaluate/bound_scorer.h"

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "plugins/sdk/idle_for_test.h"

namespace capstan::evaluate {
namespace {

constexpr int64_t kVocab = 5, kMask = 4;

// Sees the whole text: at a position i the logit of token t is t * (number of
// masks) + (its neighbours' sum) / 10.
class Neighbours final : public IdleModel, public TokenModel {
 public:
  Neighbours() : IdleModel({}, 1) {}
  TokenModel* token_model() override { return this; }
  int64_t vocab_size() const override { return kVocab; }
  int64_t max_positions() const override { return 64; }
  bool causal() const override { return false; }
  int64_t mask_token() const override { return mask; }
  at::Tensor Logits(const TokenInput& input, UnitRunner&) override {
    ++forwards;
    const int64_t rows = input.tokens.size(0), length = input.tokens.size(1);
    at::Tensor logits = at::zeros({rows, length, kVocab}, at::kFloat);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < length; ++i) {
        for (int64_t token = 0; token < kVocab; ++token) {
          logits[row][i][token] =
              Logit(&input.tokens.const_data_ptr<int64_t>()[row * length],
                    length, i, token);
        }
      }
    }
    return logits;
  }
  static double Logit(const int64_t* text, int64_t length, int64_t i,
                      int64_t token) {
    double masks = 0.0, around = 0.0;
    for (int64_t j = 0; j < length; ++j) masks += text[j] == kMask;
    if (i > 0) around += static_cast<double>(text[i - 1]);
    if (i + 1 < length) around += static_cast<double>(text[i + 1]);
    return static_cast<double>((token * 2 + i) % 3) * 0.4 * masks +
           around / 10 * static_cast<double>(token % 2);
  }
  at::Tensor CrossEntropySum(const TokenInput&, const TokenTargets&,
                             UnitRunner&) override {
    return {};
  }
  absl::StatusOr<std::unique_ptr<KvCache>> NewCache(int64_t,
                                                    int64_t) const override {
    return absl::UnimplementedError("sees the whole text");
  }

  int64_t mask = kMask;
  int forwards = 0;
};

double LogP(const std::vector<int64_t>& text, int64_t i, int64_t token) {
  double sum = 0.0;
  for (int64_t t = 0; t < kVocab; ++t) {
    sum += std::exp(Neighbours::Logit(text.data(), text.size(), i, t));
  }
  return Neighbours::Logit(text.data(), text.size(), i, token) - std::log(sum);
}

TEST(BoundScorerTest, IsTheExpectationOverAllMasks) {
  const std::vector<int64_t> context = {1, 3}, continuation = {2, 0};
  const std::vector<int64_t> text = {1, 3, 2, 0};
  // k = 1: each of both with probability 1/2, weight 2; k = 2: both, weight 1.
  const std::vector<int64_t> first = {1, 3, kMask, 0},
                             second = {1, 3, 2, kMask},
                             both = {1, 3, kMask, kMask};
  const double expected = 0.5 * (LogP(first, 2, 2) + LogP(second, 3, 0)) +
                          0.5 * (LogP(both, 2, 2) + LogP(both, 3, 0));
  Neighbours model;
  PlainRunner runner;
  BoundSettings settings;
  settings.samples = 4096;
  const auto scores =
      ScoreByBound(&model, {{context, {continuation}}}, settings, runner);
  ASSERT_TRUE(scores.ok()) << scores.status();
  EXPECT_NEAR((*scores)[0][0].log_likelihood, expected, 0.02);

  // Of one token there is nothing to estimate.
  settings.samples = 1;
  const auto one = ScoreByBound(&model, {{{1, 3}, {{2}}}}, settings, runner);
  EXPECT_NEAR((*one)[0][0].log_likelihood, LogP({1, 3, kMask}, 2, 2), 1e-5);
}

TEST(BoundScorerTest, TheSameInEachRunAndOrder) {
  Neighbours model;
  PlainRunner runner;
  BoundSettings settings;
  settings.samples = 20;
  const EncodedRequest a = {{1, 2}, {{3, 0, 1}, {2, 2}}}, b = {{0}, {{1, 1}}};
  const auto both = ScoreByBound(&model, {a, b}, settings, runner);
  const auto turned = ScoreByBound(&model, {b, a}, settings, runner);
  EXPECT_EQ((*both)[0][0].log_likelihood, (*turned)[1][0].log_likelihood);
  EXPECT_EQ((*both)[0][1].log_likelihood, (*turned)[1][1].log_likelihood);
  EXPECT_EQ((*both)[1][0].log_likelihood, (*turned)[0][0].log_likelihood);
  settings.seed = 1;
  const auto other = ScoreByBound(&model, {a, b}, settings, runner);
  EXPECT_NE((*both)[0][0].log_likelihood, (*other)[0][0].log_likelihood);
}

TEST(BoundScorerTest, AsManyTextsAtOnceAsThereIsRoomFor) {
  Neighbours model;
  PlainRunner runner;
  BoundSettings settings;
  settings.samples = 20;
  const EncodedRequest request = {{1, 2}, {{3, 0, 1}}};
  const auto all = ScoreByBound(&model, {request}, settings, runner);
  EXPECT_EQ(model.forwards, 2);
  for (const auto& [texts, forwards] :
       {std::make_pair(6, 4), std::make_pair(0, 20)}) {
    model.forwards = 0;
    settings.most_logits = texts * 5 * kVocab;
    const auto some = ScoreByBound(&model, {request}, settings, runner);
    EXPECT_EQ(model.forwards, forwards);
    EXPECT_EQ((*some)[0][0].log_likelihood, (*all)[0][0].log_likelihood);
  }
}

TEST(BoundScorerTest, GreedyIsWhatTheModelWouldWrite) {
  Neighbours model;
  PlainRunner runner;
  BoundSettings settings;
  settings.samples = 1;
  settings.greedy = true;
  int written = 0;
  for (int64_t x = 0; x < kMask; ++x) {
    for (int64_t y = 0; y < kMask; ++y) {
      const auto scores =
          ScoreByBound(&model, {{{1, 3}, {{x, y}}}}, settings, runner);
      written += (*scores)[0][0].greedy;
    }
  }
  EXPECT_EQ(written, 1);
  settings.greedy = false;
  model.forwards = 0;
  EXPECT_FALSE(
      (*ScoreByBound(&model, {{{1}, {{2}}}}, settings, runner))[0][0].greedy);
  EXPECT_EQ(model.forwards, 1);
}

TEST(BoundScorerTest, AnAnswerWithoutTokensIsCertain) {
  Neighbours model;
  PlainRunner runner;
  const auto scores =
      ScoreByBound(&model, {{{1, 3}, {{}, {2}}}}, BoundSettings(), runner);
  ASSERT_TRUE(scores.ok()) << scores.status();
  EXPECT_EQ((*scores)[0][0].log_likelihood, 0.0);
  EXPECT_TRUE((*scores)[0][0].greedy);
  EXPECT_LT((*scores)[0][1].log_likelihood, 0.0);
}

TEST(BoundScorerTest, NeedsAMaskToken) {
  Neighbours model;
  model.mask = -1;
  PlainRunner runner;
  EXPECT_FALSE(ScoreByBound(&model, {{{1}, {{2}}}}, {}, runner).ok());
}

}  // namespace
}  // namespace capstan::evaluate
