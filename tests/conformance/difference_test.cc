// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/difference.h"

#include <gtest/gtest.h>

namespace capstan {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(DifferenceTest, TheGreatest) {
  EXPECT_EQ(MaxDifference({1, 2, 3}, {1, 2.5, 2.75}), 0.5);
  EXPECT_EQ(MaxRelativeDifference({1, 2, 3}, {1, 4, 3.5}), 0.5);
  EXPECT_EQ(MaxDifference({}, {}), 0.0);
  EXPECT_EQ(MaxRelativeDifference({0}, {0}), 0.0);
}

// At any index, on either side, before or after a larger number.
TEST(DifferenceTest, NanIsNearNothing) {
  for (size_t at = 0; at < 3; ++at) {
    const std::vector<double> good = {1, 2, 3};
    std::vector<double> bad = good;
    bad[at] = kNan;
    EXPECT_EQ(MaxDifference(good, bad), kInfinity);
    EXPECT_EQ(MaxDifference(bad, good), kInfinity);
    EXPECT_EQ(MaxDifference(bad, bad), kInfinity);
    EXPECT_EQ(MaxRelativeDifference(good, bad), kInfinity);
    EXPECT_EQ(MaxRelativeDifference(bad, good), kInfinity);
  }
  Worst worst;
  worst.Add(kNan);
  worst.Add(1.0);
  EXPECT_EQ(worst.value(), kInfinity);
}

TEST(DifferenceTest, NorIsInfinityOrAnotherLength) {
  EXPECT_EQ(MaxDifference({kInfinity}, {1}), kInfinity);
  EXPECT_EQ(MaxDifference({kInfinity}, {kInfinity}), kInfinity);
  EXPECT_EQ(MaxRelativeDifference({1}, {0}), kInfinity);
  EXPECT_EQ(MaxDifference({1}, {1, 2}), kInfinity);
  EXPECT_EQ(MaxRelativeDifference({}, {1}), kInfinity);
}

}  // namespace
}  // namespace capstan
