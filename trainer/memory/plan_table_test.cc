// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_split.h"
#include "trainer/memory/memory_plan.h"

namespace capstan {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

PlannedStrategy Planned(const std::string& name) {
  PlannedStrategy strategy;
  strategy.name = name;
  strategy.settings = "defaults";
  strategy.plan.activations_known = true;
  for (int i = 0; i < kMemoryCategories; ++i) {
    strategy.plan.at_peak[i] = int64_t{i} << 20;
  }
  strategy.plan.sent = 1234;
  return strategy;
}

TEST(PlanTableTest, HasARowACategoryAndAColumnAStrategy) {
  const std::string table =
      PlanTable({Planned("capstan.ddp"), Planned("acme.other_strategy")}, {});
  EXPECT_THAT(table, ContainsRegex("capstan.ddp +acme.other_strategy\n"));
  EXPECT_THAT(table, ContainsRegex("  optimizer state +4.00 MiB +4.00 MiB\n"));
  EXPECT_THAT(table, ContainsRegex("  workspace +8.00 MiB +8.00 MiB\n"));
  EXPECT_THAT(table, ContainsRegex("  all tensors +36.0 MiB +36.0 MiB\n"));
  EXPECT_THAT(table, ContainsRegex("sent in a step +1.21 KiB +1.21 KiB\n"));
  EXPECT_THAT(table, Not(HasSubstr("host")));
  EXPECT_THAT(table, Not(HasSubstr("?")));
  // Columns are aligned.
  const std::vector<std::string> lines = absl::StrSplit(table, '\n');
  for (size_t i = 1; i < 12; ++i) EXPECT_EQ(lines[i].size(), lines[0].size());
}

TEST(PlanTableTest, SaysWhatIsNotKnownAndWhatIsOnTheHost) {
  PlannedStrategy strategy = Planned("capstan.ddp");
  strategy.plan.activations_known = false;
  strategy.plan.host = int64_t{3} << 30;
  const std::string table = PlanTable({strategy, Planned("b")}, {});
  EXPECT_THAT(table, ContainsRegex("  activations +\\? +6.00 MiB\n"));
  EXPECT_THAT(table, ContainsRegex("in host memory.* +3.00 GiB +0 B\n"));
  EXPECT_THAT(table, HasSubstr("not in the sum"));
}

TEST(PlanTableTest, GivesTheReasonsOfThoseThatRefuse) {
  const std::string table = PlanTable(
      {Planned("a")},
      {{"capstan.single", "runs on one rank"}, {"acme.b", "acme.b can't"}});
  EXPECT_THAT(table, HasSubstr(": capstan.single: runs on one rank\n"));
  EXPECT_THAT(table, HasSubstr(": acme.b can't\n"));
}

}  // namespace
}  // namespace capstan
