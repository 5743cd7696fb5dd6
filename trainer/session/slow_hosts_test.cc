// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/slow_hosts.h"

#include <gtest/gtest.h>

namespace capstan {
namespace {

TEST(FindSlowHostTest, IsTheSlowestBeyondTheFactor) {
  EXPECT_FALSE(FindSlowHost({1.0, 1.1, 1.9, 1.0}, 1, 2.0).has_value());
  const auto slow = FindSlowHost({1.0, 2.5, 3.0, 1.0, 1.0}, 1, 2.0);
  ASSERT_TRUE(slow.has_value());
  EXPECT_EQ(slow->node, 2);
  EXPECT_DOUBLE_EQ(slow->times, 3.0);
}

TEST(FindSlowHostTest, OneSlowRankMakesAHostSlow) {
  const auto slow = FindSlowHost({1.0, 1.0, 1.0, 4.0, 1.0, 1.0}, 2, 2.0);
  ASSERT_TRUE(slow.has_value());
  EXPECT_EQ(slow->node, 1);
}

TEST(FindSlowHostTest, OfTwoHostsTheFasterIsTheMeasure) {
  const auto slow = FindSlowHost({3.0, 1.0}, 1, 2.0);
  ASSERT_TRUE(slow.has_value());
  EXPECT_EQ(slow->node, 0);
  EXPECT_FALSE(FindSlowHost({3.0, 2.0}, 1, 2.0).has_value());
}

TEST(FindSlowHostTest, NothingMeasuredIsNothingSlow) {
  EXPECT_FALSE(FindSlowHost({0.0, 0.0, 1.0}, 1, 2.0).has_value());
}

}  // namespace
}  // namespace capstan
