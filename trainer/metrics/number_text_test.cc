// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "gtest/gtest.h"
#include "trainer/metrics/console.h"

namespace capstan {
namespace {

TEST(NumberText, WithCommas) {
  EXPECT_EQ(WithCommas(0), "0");
  EXPECT_EQ(WithCommas(999), "999");
  EXPECT_EQ(WithCommas(1000), "1,000");
  EXPECT_EQ(WithCommas(-123456), "-123,456");
  EXPECT_EQ(WithCommas(1234567890), "1,234,567,890");
}

TEST(NumberText, ShortCount) {
  EXPECT_EQ(ShortCount(0), "0");
  EXPECT_EQ(ShortCount(999), "999");
  EXPECT_EQ(ShortCount(1049088), "1.05 M");
  EXPECT_EQ(ShortCount(134515008), "135 M");
  EXPECT_EQ(ShortCount(12345), "12.3 k");
  // Rounding goes to the next unit rather than to "1000 k".
  EXPECT_EQ(ShortCount(999700), "1.00 M");
}

TEST(NumberText, ShortBytes) {
  EXPECT_EQ(ShortBytes(100), "100 B");
  EXPECT_EQ(ShortBytes(180 << 20), "180 MiB");
  EXPECT_EQ(ShortBytes(int64_t{3} << 29), "1.50 GiB");
}

TEST(NumberText, Durations) {
  EXPECT_EQ(ShortDuration(0.0451), "45.1 ms");
  EXPECT_EQ(ShortDuration(0.61), "610 ms");
  EXPECT_EQ(ShortDuration(2.5), "2.50 s");
  EXPECT_EQ(ShortDuration(75.0), "1:15");
  EXPECT_EQ(ClockTime(9.4), "0:09");
  EXPECT_EQ(ClockTime(59.6), "1:00");
  EXPECT_EQ(ClockTime(4000), "1:06:40");
  EXPECT_EQ(ClockTime(51 * 3600), "2 d 3 h");
  EXPECT_EQ(ClockTime(-1.0), "?");
  EXPECT_EQ(ClockTime(NAN), "?");
  EXPECT_EQ(ClockTime(INFINITY), "?");
}

TEST(NumberText, TableLinesUp) {
  EXPECT_EQ(TableText({{"a", "1"}, {"long", "2"}}), "  a     1\n  long  2\n");
}

}  // namespace
}  // namespace capstan
