// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/watch.h"

#include <gtest/gtest.h>

namespace capstan {
namespace {

TEST(LongestHangTest, IsLongerThanTheWatchdogLetsARunHang) {
  Train train;
  // Half an hour, and as long again.
  EXPECT_EQ(LongestHang(train), 2 * 1800 + 60);
  train.set_hang_floor_seconds(3);
  train.set_hang_ceiling_seconds(5);
  EXPECT_EQ(LongestHang(train), 2 * 5 + 60);
}

TEST(LongestHangTest, NoticesPatience) {
  Train train;
  train.set_hang_ceiling_seconds(25);
  EXPECT_EQ(LongestHang(train), 25 + 300 + 60);
}

TEST(LongestHangTest, HasNoLimitIfHangsAreOnlyReported) {
  Train train;
  train.set_on_hang(Train::REPORT);
  EXPECT_EQ(LongestHang(train), 0);
}

TEST(LongestHangTest, IsWhatNcclTakes) {
  Train train;
  train.set_hang_ceiling_seconds(1e12);
  EXPECT_EQ(LongestHang(train), 365.0 * 24 * 3600);
}

}  // namespace
}  // namespace capstan
