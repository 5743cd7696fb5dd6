// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/comm/collectives_for_test.h"
#include "cluster/comm/ranks_for_test.h"

namespace capstan {
namespace {

std::unique_ptr<ProcessGroup> SplitOrThrow(ProcessGroup* group, int color) {
  auto split = group->Split(color);
  Require(split.ok(), split.status().ToString());
  return *std::move(split);
}

double HostSum(ProcessGroup* group, double value) {
  group->AllReduceHost(absl::MakeSpan(&value, 1));
  return value;
}

class SplitTest : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, SplitTest, testing::Values("shm", "gloo"));

TEST_P(SplitTest, RowsAndColumns) {
  EXPECT_EQ(
      RunRanks(GetParam(), 4,
               [](ProcessGroup* group) {
                 const int rank = group->rank();
                 const auto row = SplitOrThrow(group, rank / 2);
                 const auto column = SplitOrThrow(group, rank % 2);
                 Require(row->size() == 2 && row->rank() == rank % 2, "row");
                 Require(column->size() == 2 && column->rank() == rank / 2,
                         "column");
                 Require(row->backend() == group->backend(), "backend");
                 CheckCollectives(row.get(), at::kFloat, 40009);
                 CheckCollectives(column.get(), at::kBFloat16, 17);
                 CheckCollectives(group, at::kFloat, 1000);
                 CheckOverlap(row.get());
                 // Concurrently on all three groups.
                 const at::Tensor a = at::full({30000}, rank, at::kFloat);
                 const at::Tensor b = a.clone();
                 const at::Tensor c = a.clone();
                 const auto in_row = row->AllReduce(a);
                 const auto in_column = column->AllReduce(b);
                 const auto in_all = group->AllReduce(c);
                 in_all->Wait();
                 in_column->Wait();
                 in_row->Wait();
                 Require(a.eq(4 * (rank / 2) + 1).all().item<bool>(), "row");
                 Require(b.eq(2 * (rank % 2) + 2).all().item<bool>(), "column");
                 Require(c.eq(6).all().item<bool>(), "all");
               }),
      0);
}

TEST_P(SplitTest, UnevenGroupsAndGroupsOfGroups) {
  EXPECT_EQ(RunRanks(GetParam(), 4,
                     [](ProcessGroup* group) {
                       const int rank = group->rank();
                       // Ranks 0, 1 and 3, and rank 2 alone.
                       const auto part = SplitOrThrow(group, rank == 2 ? 7 : 3);
                       if (rank == 2) {
                         Require(part->size() == 1, "alone");
                         Require(part->backend() == "none", "no backend");
                       }
                       const double sum = HostSum(part.get(), rank);
                       Require(sum == (rank == 2 ? 2 : 4), "sum");
                       // Ranks 0 and 3, and rank 1 alone.
                       const auto small = SplitOrThrow(part.get(), rank == 1);
                       Require(small->size() == (rank % 3 == 0 ? 2 : 1),
                               "size of a group's group");
                       Require(HostSum(small.get(), rank) ==
                                   (rank % 3 == 0 ? 3 : rank),
                               "its sum");
                       const auto same = SplitOrThrow(group, 0);
                       Require(same->size() == 4 && same->rank() == rank,
                               "all in one");
                       Require(HostSum(same.get(), 1) == 4, "its sum");
                     }),
            0);
}

TEST_P(SplitTest, CountsInTheParentToo) {
  EXPECT_EQ(
      RunRanks(GetParam(), 4,
               [](ProcessGroup* group) {
                 const auto part = SplitOrThrow(group, group->rank() / 2);
                 const auto other = SplitOrThrow(group, group->rank() % 2);
                 const CommunicationStats before = group->stats();
                 Require(part->stats().bytes_sent == 0, "nothing sent yet");
                 const at::Tensor tensor = at::full({1000}, 1, at::kFloat);
                 part->AllReduce(tensor)->Wait();
                 const CommunicationStats own = part->stats();
                 Require(own.bytes_sent == 4000, "its own");
                 Require(other->stats().bytes_sent == 0, "not its sister's");
                 const CommunicationStats after = group->stats();
                 Require(after.bytes_sent - before.bytes_sent == 4000, "bytes");
                 Require(own.busy_seconds > 0 &&
                             after.busy_seconds > before.busy_seconds,
                         "busy");
                 Require(own.exposed_seconds > 0 &&
                             after.exposed_seconds > before.exposed_seconds,
                         "exposed");
               }),
      0);
}

// Messages name ranks by their number in the run.
TEST_P(SplitTest, ALostRankIsNamedAsInTheRun) {
  std::string text;
  const int exit_code = RunRanks(
      GetParam(), 4,
      [](ProcessGroup* group) {
        const auto part = SplitOrThrow(group, group->rank() / 2);
        // Until the connection is up, a lost peer is a different error.
        HostSum(part.get(), 1);
        if (group->rank() == 3) raise(SIGKILL);
        if (group->rank() < 2) {
          HostSum(part.get(), 1);
          while (true) pause();
        }
        try {
          HostSum(part.get(), 1);
        } catch (const CommunicationError& e) {
          fprintf(stderr, "%s\n", e.what());
          throw;
        }
      },
      &text);
  EXPECT_EQ(exit_code, 1);
  EXPECT_NE(text.find("[rank 2] rank 2 lost the connection to another rank "
                      "during all-reduce: "),
            std::string::npos)
      << text;
}

}  // namespace
}  // namespace capstan
