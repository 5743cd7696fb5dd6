// SPDX-License-Identifier: Apache-2.0
//
// The formulas by hand; tests/golden/grpo_losses_test.cc compares with TRL.
#include "plugins/grpo/objective/losses.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/status.h"

namespace capstan::grpo {
namespace {

at::Tensor Row(const std::vector<double>& values) {
  return at::tensor(values, at::kDouble).unsqueeze(0);
}

// One answer of two tokens, with the ratios 1.5 and 0.75.
AnswerTokens OneAnswer(double advantage) {
  AnswerTokens answers;
  answers.old_logps = Row({-1.0, -2.0});
  answers.logps =
      (answers.old_logps + Row({std::log(1.5), std::log(0.75)})).detach();
  answers.reference = answers.logps - Row({std::log(2.0), 0.0});
  answers.logps.requires_grad_(true);
  answers.mask = at::full({1, 2}, true, at::kBool);
  answers.advantages = at::tensor(std::vector<double>{advantage}, at::kDouble);
  return answers;
}

// The loss of one answer, and what it is by each of its log-probabilities.
void ExpectLoss(const LossOptions& options, double advantage, double loss,
                const std::vector<double>& gradient) {
  const AnswerTokens answers = OneAnswer(advantage);
  const at::Tensor sum = LossOf(options, answers).sum;
  const double count = static_cast<double>(LossCount(options, 1, 2));
  EXPECT_NEAR(sum.item<double>() / count, loss, 1e-6);
  (sum / count).backward();
  for (int64_t t = 0; t < 2; ++t) {
    EXPECT_NEAR(answers.logps.grad()[0][t].item<double>(), gradient[t], 1e-6)
        << Loss_Name(options.loss) << ", token " << t;
  }
}

TEST(LossesTest, ClippedOnes) {
  LossOptions options;
  // min(1.5 A, 1.2 A) has no gradient for A > 0.
  ExpectLoss(options, 2.0, -(1.2 + 0.75), {0.0, -0.75});
  ExpectLoss(options, -2.0, 1.5 + 0.8, {1.5, 0.0});
  options.clip_most = 1.25;
  ExpectLoss(options, -2.0, 1.25 + 0.8, {0.0, 0.0});
  options.clip_most = 0.0;
  options.clip_high = 0.6;
  ExpectLoss(options, 2.0, -(1.5 + 0.75), {-1.5, -0.75});
  options.loss = GRPO;
  ExpectLoss(options, 2.0, -(1.5 + 0.75), {-1.5, -0.75});
  options.loss = DR_GRPO;
  options.max_new_tokens = 4;
  ExpectLoss(options, 2.0, -(1.5 + 0.75) / 2.0, {-0.75, -0.375});
}

TEST(LossesTest, RatiosOfWholeAnswers) {
  LossOptions options;
  options.loss = GRPO;
  options.sequence_ratios = true;
  const double ratio = std::sqrt(1.5 * 0.75);
  ExpectLoss(options, 2.0, -2.0 * ratio, {-ratio, -ratio});
  options.loss = LUSPO;
  ExpectLoss(options, 2.0, -4.0 * ratio, {-2.0 * ratio, -2.0 * ratio});
  options.clip_high = 0.05;
  ExpectLoss(options, 2.0, -4.0 * 1.05, {0.0, 0.0});
}

TEST(LossesTest, SmoothOnes) {
  LossOptions options;
  options.loss = CISPO;
  const double first = std::log(1.5) - 1.0, second = std::log(0.75) - 2.0;
  ExpectLoss(options, 2.0, -(1.2 * first + 0.75 * second), {-1.2, -0.75});
  options.loss = SAPO;
  const auto sigmoid = [](double x) { return 1.0 / (1.0 + std::exp(-x)); };
  const auto soft = [&](double r) { return 4.0 * sigmoid(r - 1.0); };
  const auto slope = [&](double r) {
    return -4.0 * r * sigmoid(r - 1.0) * sigmoid(1.0 - r);
  };
  ExpectLoss(options, 2.0, -(soft(1.5) + soft(0.75)),
             {slope(1.5), slope(0.75)});
  options.loss = VESPO;
  // w = 1.125.
  const double up = 1.125 * 1.125 * std::exp(3.0 * -0.125);
  ExpectLoss(options, 2.0, -up * (first + second), {-up, -up});
  const double down = std::pow(1.125, 3.0) * std::exp(2.0 * -0.125);
  ExpectLoss(options, -2.0, down * (first + second), {down, down});
}

TEST(LossesTest, TheDivergenceFromTheReference) {
  LossOptions options;
  options.beta = 0.5;
  options.unbiased_kl = false;
  // k3 of log 1/2: 1/2 + log 2 - 1, whose slope is 1 - 1/2.
  const double kl = std::log(2.0) - 0.5;
  ExpectLoss(options, 0.0, 0.25 * kl, {0.25 * 0.5, 0.0});
  // The ratio is 1.5. Twice the slope that the ratio alone has.
  options.unbiased_kl = true;
  ExpectLoss(options, 0.0, 0.25 * 1.5 * kl, {0.25 * 1.5 * (kl + 0.5), 0.0});
}

TEST(LossesTest, MetricsHaveTrlsNames) {
  LossOptions options;
  options.beta = 0.5;
  AnswerTokens answers = OneAnswer(2.0);
  answers.entropies = Row({3.0, 4.0});
  const auto value = [&](const std::string& wanted) {
    const at::Tensor metrics = LossOf(options, answers).metrics;
    const std::vector<std::string> names = MetricNames(options);
    EXPECT_EQ(metrics.size(0), static_cast<int64_t>(names.size()));
    for (size_t i = 0; i < names.size(); ++i) {
      const at::Tensor row = metrics[static_cast<int64_t>(i)];
      if (names[i] == wanted) return (row[0] / row[1]).item<double>();
    }
    ADD_FAILURE() << "no " << wanted;
    return 0.0;
  };
  EXPECT_NEAR(value("entropy"), 3.5, 1e-12);
  EXPECT_NEAR(value("ratio_mean"), 1.125, 1e-12);
  EXPECT_NEAR(value("log_ratio_mean"), std::log(2.0) / 2.0, 1e-12);
  EXPECT_NEAR(value("kl"), 0.75 * (std::log(2.0) - 0.5), 1e-12);
  EXPECT_EQ(value("clip_ratio/low_mean"), 0.0);
  EXPECT_EQ(value("clip_ratio/high_mean"), 0.5);
  answers.advantages = -answers.advantages;
  EXPECT_EQ(value("clip_ratio/low_mean"), 0.5);
  EXPECT_EQ(value("clip_ratio/high_mean"), 0.0);
  options.sequence_ratios = true;
  options.clip_low = 0.0;
  options.clip_high = 0.01;
  answers.advantages = -answers.advantages;
  EXPECT_EQ(value("clip_ratio/high_mean"), 1.0);
  EXPECT_NEAR(value("ratio_mean"), std::sqrt(1.125), 1e-12);
  options.loss = VESPO;
  options.sequence_ratios = false;
  EXPECT_GT(value("vespo/phi_seq_mean"), 0.0);
}

// Of a loss by any of the names.
std::vector<LossOptions> AllLosses() {
  std::vector<LossOptions> all;
  for (int loss = Loss_MIN; loss <= Loss_MAX; ++loss) {
    for (const bool sequence : {false, true}) {
      LossOptions options;
      options.loss = static_cast<Loss>(loss);
      options.sequence_ratios = sequence;
      options.beta = 0.1;
      all.push_back(options);
    }
  }
  return all;
}

TEST(LossesTest, PaddingMayBeAnything) {
  for (const LossOptions& options : AllLosses()) {
    const AnswerTokens plain = OneAnswer(2.0);
    AnswersLoss wanted = LossOf(options, plain);
    wanted.sum.backward();
    for (const double waste : {1e4, std::numeric_limits<double>::quiet_NaN()}) {
      AnswerTokens answers = OneAnswer(2.0);
      const auto pad = [&](const at::Tensor& x, double with) {
        return at::cat({x, at::full({1, 3}, with, at::kDouble)}, 1);
      };
      answers.logps = pad(answers.logps.detach(), waste).requires_grad_(true);
      answers.old_logps = pad(answers.old_logps, -waste);
      answers.reference = pad(answers.reference, 2.0 * waste);
      answers.mask = at::cat({answers.mask, at::zeros({1, 3}, at::kBool)}, 1);
      AnswersLoss loss = LossOf(options, answers);
      loss.sum.backward();
      EXPECT_EQ(loss.sum.item<float>(), wanted.sum.item<float>());
      EXPECT_TRUE(loss.metrics.equal(wanted.metrics));
      const at::Tensor gradient = answers.logps.grad();
      EXPECT_TRUE(gradient.narrow(1, 0, 2).equal(plain.logps.grad()));
      EXPECT_EQ(gradient.narrow(1, 2, 3).abs().max().item<double>(), 0.0);
    }
  }
}

TEST(LossesTest, AnAnswerWithoutATokenCountsAsOne) {
  for (const LossOptions& options : AllLosses()) {
    AnswerTokens answers = OneAnswer(2.0);
    answers.mask = ~answers.mask;
    const at::Tensor sum = LossOf(options, answers).sum;
    sum.backward();
    EXPECT_EQ(sum.item<double>(), 0.0);
    EXPECT_EQ(answers.logps.grad().abs().max().item<double>(), 0.0);
  }
  LossOptions options;
  EXPECT_EQ(LossCount(options, 1, 0), 0);
  options.loss = GRPO;
  EXPECT_EQ(LossCount(options, 1, 0), 1);
}

// What all of them are for: at the first update, A grad log p.
TEST(LossesTest, WithoutOldAnswersAllFollowThePolicyGradient) {
  for (LossOptions& options : AllLosses()) {
    options.beta = 0.0;
    if (options.loss == VESPO && options.sequence_ratios) continue;
    AnswerTokens answers = OneAnswer(-2.0);
    answers.old_logps = answers.logps.detach();
    LossOf(options, answers).sum.backward();
    const bool mean = options.loss == GRPO || options.loss == SAPO;
    const at::Tensor wanted = at::full({1, 2}, mean ? 1.0 : 2.0, at::kDouble);
    EXPECT_LT((answers.logps.grad() - wanted).abs().max().item<double>(), 1e-6)
        << Loss_Name(options.loss) << options.sequence_ratios;
  }
}

TEST(LossOptionsTest, DefaultsFollowTheLoss) {
  Config config;
  EXPECT_EQ(LossOptionsOf(config)->clip_high, 0.2);
  config.set_clip_low(0.1);
  EXPECT_EQ(LossOptionsOf(config)->clip_high, 0.1);
  config.clear_clip_low();
  config.set_loss(CISPO);
  EXPECT_EQ(LossOptionsOf(config)->clip_high, 4.0);
  config.set_loss(LUSPO);
  EXPECT_TRUE(LossOptionsOf(config)->sequence_ratios);
  EXPECT_TRUE(LossOptionsOf(config)->unbiased_kl);
}

TEST(LossOptionsTest, NamesTheFieldThatIsWrong) {
  const auto field = [](const Config& config) {
    return FieldOf(LossOptionsOf(config).status()).value_or("");
  };
  Config config;
  config.set_clip_low(1.5);
  EXPECT_EQ(field(config), "clip_low");
  config.set_clip_low(0.2);
  config.set_clip_high(-0.1);
  EXPECT_EQ(field(config), "clip_high");
  config.set_clip_high(0.3);
  config.set_clip_most(1.3);
  EXPECT_EQ(field(config), "clip_most");
  config.set_clip_most(1.4);
  EXPECT_EQ(field(config), "");
  config.set_beta(-1.0);
  EXPECT_EQ(field(config), "beta");
  config.set_beta(0.1);
  config.set_loss(CISPO);
  EXPECT_EQ(field(config), "clip_low");
  config.clear_clip_low();
  EXPECT_EQ(field(config), "clip_most");
  config.set_loss(VESPO);
  EXPECT_EQ(field(config), "clip_high");
  config.clear_clip_high();
  config.set_clip_most(0.0);
  config.set_sequence_ratios(true);
  EXPECT_EQ(field(config), "sequence_ratios");
}

}  // namespace
}  // namespace capstan::grpo
