// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/step_sums.h"

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cluster/comm/single_group.h"
#include "plugins/sdk/idle_for_test.h"
#include "trainer/session/metric_sums.h"

namespace capstan {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

StepSums MakeSums(double loss_sum, double count, double squared_sum) {
  StepSums sums;
  sums.loss_sum = loss_sum;
  sums.count = count;
  sums.tokens = 2 * count;
  sums.gradient_squared_sum = squared_sum;
  return sums;
}

class StepSumsTest : public ::testing::Test {
 protected:
  // Returns the scale on the device; sets read_.
  float Scale(const StepSums& mine, const GradientRule& rule) {
    deferred_.Reduce(mine, at::full({}, mine.loss_sum, at::kDouble),
                     at::full({}, mine.gradient_squared_sum, at::kDouble), rule,
                     *group_);
    EXPECT_TRUE(deferred_.pending());
    read_ = deferred_.Read();
    EXPECT_FALSE(deferred_.pending());
    EXPECT_EQ(deferred_.scale().scalar_type(), at::kFloat);
    return deferred_.scale().item<float>();
  }

  const std::unique_ptr<ProcessGroup> group_ = CreateSingleGroup(at::kCPU);
  DeferredSums deferred_{at::kCPU};
  StepSums read_;
};

TEST_F(StepSumsTest, ScalesAndClips) {
  GradientRule rule;
  rule.nominal_targets = 100.0;
  rule.loss_scale = 4.0;
  // The gradient of the sum has norm 5; its mean is over 50.
  const StepSums sums =
      MakeSums(80.0, 50.0, std::pow(5.0 * 50.0 * 4.0 / 100.0, 2));
  StepOutcome outcome = OutcomeOf(sums, rule);
  EXPECT_DOUBLE_EQ(outcome.grad_norm, 5.0);
  EXPECT_DOUBLE_EQ(outcome.gradient_scale, 0.5);
  EXPECT_TRUE(outcome.finite);
  EXPECT_FALSE(outcome.skipped);
  rule.max_norm = 1.0;
  outcome = OutcomeOf(sums, rule);
  EXPECT_DOUBLE_EQ(outcome.grad_norm, 5.0);
  EXPECT_NEAR(outcome.gradient_scale, 0.1, 1e-7);
  rule.max_norm = 6.0;
  EXPECT_DOUBLE_EQ(OutcomeOf(sums, rule).gradient_scale, 0.5);
}

TEST_F(StepSumsTest, TheNextLossScaleIsOnTheDevice) {
  GradientRule rule;
  Scale(MakeSums(80, 50, 25), rule);
  EXPECT_FALSE(deferred_.next_loss_scale().defined());
  rule.next_if_finite = 8.0;
  rule.next_if_not = 2.0;
  Scale(MakeSums(80, 50, 25), rule);
  EXPECT_EQ(deferred_.next_loss_scale().item<double>(), 8.0);
  // Skipped, but finite.
  Scale(MakeSums(80, 0, 25), rule);
  EXPECT_EQ(deferred_.next_loss_scale().item<double>(), 8.0);
  for (const StepSums& sums : {MakeSums(80, 50, kInf), MakeSums(NAN, 50, 25)}) {
    Scale(sums, rule);
    EXPECT_EQ(deferred_.next_loss_scale().item<double>(), 2.0);
  }
}

TEST_F(StepSumsTest, SkipsWhatIsNotFiniteOrEmpty) {
  const GradientRule rule;
  for (const StepSums& sums : {MakeSums(kInf, 5, 1), MakeSums(NAN, 5, 1),
                               MakeSums(1, 5, kInf), MakeSums(1, 5, NAN)}) {
    EXPECT_FALSE(OutcomeOf(sums, rule).finite);
    EXPECT_TRUE(OutcomeOf(sums, rule).skipped);
    EXPECT_FALSE(std::isfinite(Scale(sums, rule)));
  }
  EXPECT_TRUE(OutcomeOf(MakeSums(0, 0, 0), rule).finite);
  EXPECT_TRUE(OutcomeOf(MakeSums(0, 0, 0), rule).skipped);
  EXPECT_FALSE(std::isfinite(Scale(MakeSums(0, 0, 0), rule)));
}

// An objective's metrics are reduced and read with the sums.
TEST_F(StepSumsTest, MetricsComeWithTheSums) {
  DeferredSums deferred(at::kCPU, /*ranks=*/0, /*metrics=*/4);
  const StepSums mine = MakeSums(80.0, 50.0, 1.0);
  const at::Tensor metrics =
      at::tensor({1.5, 2.0, 3.0, 4.0}, at::kDouble).view({2, 2});
  deferred.Reduce(mine, at::Tensor(), at::Tensor(), GradientRule(), *group_,
                  metrics);
  EXPECT_DOUBLE_EQ(deferred.Read().loss_sum, 80.0);
  EXPECT_EQ(deferred.metrics(), std::vector<double>({1.5, 2.0, 3.0, 4.0}));
  // None in this step, or a rank that failed.
  deferred.Reduce(mine, at::Tensor(), at::Tensor(), GradientRule(), *group_);
  EXPECT_DOUBLE_EQ(deferred.Read().count, 50.0);
  EXPECT_EQ(deferred.metrics(), std::vector<double>(4, 0.0));
}

TEST_F(StepSumsTest, TheDevicesScaleIsTheHostsBitByBit) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  for (int i = 0; i < 300; ++i) {
    GradientRule rule;
    rule.nominal_targets = std::floor(1e5 * uniform(random)) + 1;
    rule.max_norm = i % 3 == 0 ? 0.0 : std::exp(8 * uniform(random) - 4);
    const StepSums sums =
        MakeSums(1e4 * uniform(random), std::floor(1e5 * uniform(random)) + 1,
                 std::exp(20 * uniform(random) - 10));
    EXPECT_EQ(Scale(sums, rule),
              static_cast<float>(OutcomeOf(sums, rule).gradient_scale));
    // Just a spike, and just none.
    rule.skip_spikes = true;
    rule.most_loss = std::nextafter(sums.loss_sum / sums.count, -kInf);
    EXPECT_TRUE(OutcomeOf(sums, rule).spike);
    EXPECT_TRUE(OutcomeOf(sums, rule).skipped);
    EXPECT_TRUE(std::isnan(Scale(sums, rule)));
    rule.most_loss = sums.loss_sum / sums.count;
    EXPECT_FALSE(OutcomeOf(sums, rule).spike);
    EXPECT_FALSE(OutcomeOf(sums, rule).skipped);
    EXPECT_FALSE(std::isnan(Scale(sums, rule)));
    EXPECT_EQ(read_.loss_sum, sums.loss_sum);
    EXPECT_EQ(read_.count, sums.count);
    EXPECT_EQ(read_.tokens, sums.tokens);
    EXPECT_EQ(read_.gradient_squared_sum, sums.gradient_squared_sum);
  }
}

TEST_F(StepSumsTest, ASpikeIsToldButNotSkippedUnlessAsked) {
  GradientRule rule;
  rule.most_loss = 1.0;
  EXPECT_TRUE(OutcomeOf(MakeSums(11, 10, 1), rule).spike);
  EXPECT_FALSE(OutcomeOf(MakeSums(11, 10, 1), rule).skipped);
  EXPECT_TRUE(std::isfinite(Scale(MakeSums(11, 10, 1), rule)));
  // What isn't finite or has no targets is something else.
  EXPECT_FALSE(OutcomeOf(MakeSums(kInf, 10, 1), rule).spike);
  EXPECT_FALSE(OutcomeOf(MakeSums(0, 0, 0), rule).spike);
}

TEST_F(StepSumsTest, NoUpdateWhereARankHasFailed) {
  StepSums sums = MakeSums(1, 5, 1);
  sums.failed_ranks = 1;
  sums.stop_requests = 1;
  sums.bad_samples = 3;
  EXPECT_FALSE(std::isfinite(Scale(sums, GradientRule())));
  EXPECT_EQ(read_.failed_ranks, 1);
  EXPECT_EQ(read_.stop_requests, 1);
  EXPECT_EQ(read_.bad_samples, 3);
}

// A group in which another rank, the second of two, adds `other`.
class TwoRanks : public IdleGroup {
 public:
  explicit TwoRanks(std::vector<double> other)
      : IdleGroup(0, 2), other_(std::move(other)) {}
  std::unique_ptr<Work> AllReduce(const at::Tensor& tensor) override {
    AllReduceHost({tensor.mutable_data_ptr<double>(),
                   static_cast<size_t>(tensor.numel())});
    return std::make_unique<IdleWork>();
  }
  void AllReduceHost(absl::Span<double> values) override {
    ASSERT_EQ(values.size(), other_.size());
    for (size_t i = 0; i < values.size(); ++i) values[i] += other_[i];
  }

 private:
  const std::vector<double> other_;
};

// Each number is the largest of all ranks', beside the sums.
TEST(StepSumsMemoryTest, LargestOfAllRanks) {
  std::vector<double> other(11 + 2 * 4, 0.0);
  other[1] = 5.0;  // count
  const double memory[] = {11.0, 20.0, 29.0, 41.0};
  std::copy(std::begin(memory), std::end(memory), other.begin() + 15);
  TwoRanks group(other);
  const GpuMemory mine = {10, 21, 30, 40};
  const auto check = [](const GpuMemory& largest) {
    EXPECT_EQ(largest.allocated, 11);
    EXPECT_EQ(largest.reserved, 21);
    EXPECT_EQ(largest.peak_allocated, 30);
    EXPECT_EQ(largest.peak_reserved, 41);
  };
  StepSums sums = MakeSums(80.0, 50.0, 4.0);
  GpuMemory largest = mine;
  Reduce(group, &sums, &largest);
  check(largest);
  EXPECT_EQ(sums.count, 55.0);
  EXPECT_EQ(sums.loss_sum, 80.0);

  DeferredSums deferred(at::kCPU, /*ranks=*/2);
  deferred.set_memory(mine);
  deferred.Reduce(MakeSums(80.0, 50.0, 4.0), at::Tensor(), at::Tensor(),
                  GradientRule(), group);
  EXPECT_EQ(deferred.Read().count, 55.0);
  check(deferred.largest_memory());
}

// The greatest over micro-batches and ranks where the tag says so.
TEST(MetricSumsTest, SumsAndGreatest) {
  const MetricSums sums({"train/reward", "train/log_ratio_max", "train/kl"});
  EXPECT_EQ(sums.numbers(2), 8);
  std::vector<double> ranks(8, 0.0);
  for (int rank = 0; rank < 2; ++rank) {
    at::Tensor all;
    for (int micro = 0; micro < 3; ++micro) {
      const double x = rank + 2.0 * micro;
      sums.Add(
          at::tensor({x, 1.0, x == 3.0 ? 9.0 : x, 1.0, 0.0, 0.0}, at::kDouble)
              .view({3, 2}),
          &all);
    }
    const at::Tensor mine = sums.ForRanks(all, rank, 2);
    ASSERT_EQ(mine.numel(), 8);
    for (int i = 0; i < 8; ++i) ranks[i] += mine[i].item<double>();
  }
  EXPECT_EQ(sums.Numbers(ranks, 2),
            (TaggedNumbers{{"train/reward", 15.0 / 6.0},
                           {"train/log_ratio_max", 9.0}}));
}

}  // namespace
}  // namespace capstan
