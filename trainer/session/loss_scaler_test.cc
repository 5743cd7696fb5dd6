// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/loss_scaler.h"

#include <gtest/gtest.h>

namespace capstan {
namespace {

LossScaling Policy() {
  LossScaling policy;
  policy.initial_scale = 8;
  policy.growth_interval = 3;
  return policy;
}

TEST(LossScalerTest, WithoutAPolicyTheScaleIsOne) {
  LossScaler scaler(absl::nullopt);
  scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 1.0);
  EXPECT_FALSE(scaler.enabled());
  EXPECT_TRUE(scaler.at_minimum());
}

TEST(LossScalerTest, GrowsAfterGoodStepsAndBacksOff) {
  LossScaler scaler(Policy());
  scaler.Update(true);
  scaler.Update(true);
  EXPECT_EQ(scaler.scale(), 8);
  scaler.Update(true);
  EXPECT_EQ(scaler.scale(), 16);
  scaler.Update(true);
  scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 8);
  EXPECT_EQ(scaler.good_steps(), 0);
}

TEST(LossScalerTest, NeverBelowTheMinimum) {
  LossScaler scaler(Policy());
  for (int i = 0; i < 10; ++i) scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 1.0);
  EXPECT_TRUE(scaler.at_minimum());
}

TEST(LossScalerTest, RestoredScalerGoesOnAsTheSavedOne) {
  LossScaler one(Policy());
  one.Update(true);
  one.Update(true);
  LossScaler other(Policy());
  other.Restore(one.scale(), one.good_steps());
  one.Update(true);
  other.Update(true);
  EXPECT_EQ(other.scale(), 16);
  EXPECT_EQ(one.scale(), other.scale());
}

// Its checkpoint has a scale of 0.
TEST(LossScalerTest, ARunWithoutLossScalingLeavesTheFirstScale) {
  LossScaler scaler(Policy());
  scaler.Restore(0.0, 0);
  EXPECT_EQ(scaler.scale(), LossScaler(Policy()).scale());
}

}  // namespace
}  // namespace capstan
