// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/verdict.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "trainer/process_group/single_group.h"

namespace capstan {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

Verdict MakeVerdict(double loss_sum, double count, double squared_sum) {
  Verdict verdict;
  verdict.loss_sum = loss_sum;
  verdict.count = count;
  verdict.tokens = 2 * count;
  verdict.gradient_squared_sum = squared_sum;
  return verdict;
}

class VerdictTest : public ::testing::Test {
 protected:
  // The device's scale, and what is read afterwards.
  float Scale(const Verdict& mine, const GradientRule& rule) {
    late_.Issue(mine, at::full({}, mine.loss_sum, at::kDouble),
                at::full({}, mine.gradient_squared_sum, at::kDouble), rule,
                *group_);
    EXPECT_TRUE(late_.issued());
    read_ = late_.Read();
    EXPECT_FALSE(late_.issued());
    EXPECT_EQ(late_.scale().scalar_type(), at::kFloat);
    return late_.scale().item<float>();
  }

  const std::unique_ptr<ProcessGroup> group_ = CreateSingleGroup(at::kCPU);
  LateVerdict late_{at::kCPU};
  Verdict read_;
};

TEST_F(VerdictTest, Judges) {
  GradientRule rule;
  rule.nominal_targets = 100.0;
  rule.loss_scale = 4.0;
  // The gradient of the sum has norm 5; its mean is over 50.
  const Verdict verdict =
      MakeVerdict(80.0, 50.0, std::pow(5.0 * 50.0 * 4.0 / 100.0, 2));
  Judgement judgement = Judge(verdict, rule);
  EXPECT_DOUBLE_EQ(judgement.grad_norm, 5.0);
  EXPECT_DOUBLE_EQ(judgement.gradient_scale, 0.5);
  EXPECT_TRUE(judgement.finite);
  EXPECT_FALSE(judgement.skipped);
  rule.max_norm = 1.0;
  judgement = Judge(verdict, rule);
  EXPECT_DOUBLE_EQ(judgement.grad_norm, 5.0);
  EXPECT_NEAR(judgement.gradient_scale, 0.1, 1e-7);
  rule.max_norm = 6.0;
  EXPECT_DOUBLE_EQ(Judge(verdict, rule).gradient_scale, 0.5);
}

TEST_F(VerdictTest, SkipsWhatIsNotFiniteOrEmpty) {
  const GradientRule rule;
  for (const Verdict& verdict :
       {MakeVerdict(kInf, 5, 1), MakeVerdict(NAN, 5, 1),
        MakeVerdict(1, 5, kInf), MakeVerdict(1, 5, NAN)}) {
    EXPECT_FALSE(Judge(verdict, rule).finite);
    EXPECT_TRUE(Judge(verdict, rule).skipped);
    EXPECT_FALSE(std::isfinite(Scale(verdict, rule)));
  }
  EXPECT_TRUE(Judge(MakeVerdict(0, 0, 0), rule).finite);
  EXPECT_TRUE(Judge(MakeVerdict(0, 0, 0), rule).skipped);
  EXPECT_FALSE(std::isfinite(Scale(MakeVerdict(0, 0, 0), rule)));
}

TEST_F(VerdictTest, TheDevicesScaleIsTheHostsBitByBit) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  for (int i = 0; i < 300; ++i) {
    GradientRule rule;
    rule.nominal_targets = std::floor(1e5 * uniform(random)) + 1;
    rule.max_norm = i % 3 == 0 ? 0.0 : std::exp(8 * uniform(random) - 4);
    const Verdict verdict = MakeVerdict(1e4 * uniform(random),
                                        std::floor(1e5 * uniform(random)) + 1,
                                        std::exp(20 * uniform(random) - 10));
    EXPECT_EQ(Scale(verdict, rule),
              static_cast<float>(Judge(verdict, rule).gradient_scale));
    EXPECT_EQ(read_.loss_sum, verdict.loss_sum);
    EXPECT_EQ(read_.count, verdict.count);
    EXPECT_EQ(read_.tokens, verdict.tokens);
    EXPECT_EQ(read_.gradient_squared_sum, verdict.gradient_squared_sum);
  }
}

TEST_F(VerdictTest, NoUpdateWhereARankHasFailed) {
  Verdict verdict = MakeVerdict(1, 5, 1);
  verdict.failed_ranks = 1;
  verdict.stop_requests = 1;
  EXPECT_FALSE(std::isfinite(Scale(verdict, GradientRule())));
  EXPECT_EQ(read_.failed_ranks, 1);
  EXPECT_EQ(read_.stop_requests, 1);
}

}  // namespace
}  // namespace capstan
