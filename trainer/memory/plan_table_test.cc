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

TEST(PlanTableTest, SaysWhatAnEvaluationTakes) {
  PlannedStrategy strategy = Planned("capstan.ddp");
  EXPECT_THAT(PlanTable({strategy}, {}), Not(HasSubstr("evaluation")));
  strategy.plan.evaluation = int64_t{5} << 20;
  EXPECT_THAT(PlanTable({strategy}, {}),
              ContainsRegex("  in an evaluation, at most +5.00 MiB\n"));
}

TEST(HostTableTest, AddsUpTheRanksOfAMachine) {
  MemoryPlan plan;
  plan.host = 7 << 20;
  plan.snapshot = 2 << 20;
  plan.mirror = 1 << 20;
  const std::string gpu = HostTable(plan, 3, 60 << 20, 5 << 20);
  EXPECT_THAT(gpu, ContainsRegex("copies of the state of 3 ranks +30.0 MiB\n"));
  EXPECT_THAT(gpu, ContainsRegex("the launcher +60.0 MiB\n"));
  EXPECT_THAT(gpu, ContainsRegex("files that are mapped +5.00 MiB\n"));
  plan.process = 100 << 20;
  EXPECT_THAT(HostTable(plan, 1, 0, 0),
              ContainsRegex("  processes of 1 rank +100 MiB\n"));
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
