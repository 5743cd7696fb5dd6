// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/host_failures.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace capstan {
namespace {

Witness Rule(int64_t most, int64_t within, int64_t every) {
  Witness rule;
  rule.set_most_failures(most);
  rule.set_within_steps(within);
  rule.set_every_steps(every);
  return rule;
}

TEST(HostFailuresTest, ThoseOfOneHostWithinSoManyStepsCount) {
  HostFailures failures(Rule(3, 10, 0));
  EXPECT_FALSE(failures.Add("a", 2, 5));
  EXPECT_FALSE(failures.Add("b", 2, 6));
  EXPECT_FALSE(failures.Add("a", 1, 15));  // 5 is ten steps ago
  EXPECT_FALSE(failures.Add("a", 1, 20));
  EXPECT_TRUE(failures.Add("a", 1, 24));
}

TEST(HostFailuresTest, StepsThatAreCheckedCount) {
  HostFailures failures(Rule(2, 3, 100));
  EXPECT_FALSE(failures.Add("a", 1, 100));
  EXPECT_FALSE(failures.Add("a", 1, 400));
  EXPECT_TRUE(failures.Add("a", 1, 600));
}

TEST(HostFailuresTest, TheLargestNumbersAreNoOverflow) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  HostFailures failures(Rule(2, kMost, kMost));
  EXPECT_FALSE(failures.Add("a", 1, 1));
  EXPECT_TRUE(failures.Add("a", 1, kMost));
}

TEST(HostFailuresTest, OutliveTheRanks) {
  HostFailures before(Rule(3, 10, 0));
  before.Add("a host", 2, 5);
  before.Add("b", 1, 6);
  HostFailures after(Rule(3, 10, 0));
  after.Restore(before.Text() + "nonsense\n");
  EXPECT_EQ(after.Text(), before.Text());
  EXPECT_TRUE(after.Add("a host", 1, 7));
}

TEST(HostFailuresTest, WithoutARuleNoneAreTooMany) {
  HostFailures failures(Rule(0, 0, 0));
  EXPECT_FALSE(failures.counts());
  EXPECT_FALSE(failures.Add("a", 1000, 1));
}

}  // namespace
}  // namespace capstan
