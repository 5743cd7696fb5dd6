// SPDX-License-Identifier: Apache-2.0
//
// The formulas by hand; tests/golden/dpo_test.cc compares with TRL.
#include "plugins/dpo/objective/losses.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace capstan::dpo {
namespace {

at::Tensor Of(double value) {
  return at::tensor(std::vector<double>{value}, at::kDouble);
}

// log p of three and of two tokens.
Pairs OnePair() {
  return {Of(-3.0), Of(-4.0), Of(3.0), Of(2.0), Of(-3.5), Of(-4.2)};
}

double LossOf(const LossOptions& options, const Pairs& pairs = OnePair()) {
  return LossesOf(options, pairs).losses[0].item<double>();
}

TEST(PairLossesTest, TheFormulas) {
  LossOptions options;
  // With r = 0.05 and 0.02: -log sigmoid(0.03).
  EXPECT_NEAR(LossOf(options), 0.6782596763414485, 1e-12);
  options.label_smoothing = 0.1;
  EXPECT_NEAR(LossOf(options), 0.6812596763414485, 1e-12);
  options.label_smoothing = 0.0;
  options.loss = IPO;
  // (0.5 / 3 - 0.2 / 2 - 5)^2
  EXPECT_NEAR(LossOf(options), 24.33777777777778, 1e-12);
  options.loss = ORPO;
  // Means a token of -1 and -2.
  EXPECT_NEAR(LossOf(options), 0.023818302641382825, 1e-12);
  options.loss = SIMPO;
  EXPECT_NEAR(LossOf(options), 0.9130152523999526, 1e-12);
  options.label_smoothing = 0.1;
  EXPECT_NEAR(LossOf(options), 0.8730152523999526, 1e-12);
}

TEST(PairLossesTest, MetricsHaveTrlsNames) {
  LossOptions options;
  const auto values = [&] {
    std::vector<double> all;
    for (const at::Tensor& metric : LossesOf(options, OnePair()).metrics) {
      all.push_back(metric[0].item<double>());
    }
    return all;
  };
  const auto expect = [&](const std::vector<double>& wanted) {
    const std::vector<double> all = values();
    ASSERT_EQ(all.size(), MetricNames(options.loss).size());
    ASSERT_EQ(all.size(), wanted.size());
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_NEAR(all[i], wanted[i], 1e-6) << MetricNames(options.loss)[i];
    }
  };
  expect({0.05, 0.02, 1.0, 0.03, -3.0, -4.0});
  options.loss = ORPO;
  expect({-0.1, -0.2, 1.0, 0.1, -1.0, -2.0, -0.23818302641382824,
          1.3132616875182228});
}

TEST(PairLossesTest, ACertainTextHasFiniteOddsAndGradients) {
  LossOptions options;
  options.loss = ORPO;
  for (const double sure : {0.0, -1e-12, -80.0}) {
    Pairs pairs = OnePair();
    pairs.chosen = Of(sure).set_requires_grad(true);
    pairs.rejected = Of(-0.5).set_requires_grad(true);
    const at::Tensor loss = LossesOf(options, pairs).losses.sum();
    loss.backward();
    EXPECT_TRUE(std::isfinite(loss.item<double>())) << sure;
    EXPECT_TRUE(at::isfinite(pairs.chosen.grad()).all().item<bool>()) << sure;
    EXPECT_TRUE(at::isfinite(pairs.rejected.grad()).all().item<bool>()) << sure;
  }
}

}  // namespace
}  // namespace capstan::dpo
