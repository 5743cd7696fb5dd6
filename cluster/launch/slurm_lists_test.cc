// SPDX-License-Identifier: Apache-2.0
#include "cluster/launch/slurm_lists.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace capstan {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(ExpandNodeList, Names) {
  EXPECT_THAT(*ExpandNodeList("n1"), ElementsAre("n1"));
  EXPECT_THAT(*ExpandNodeList("n[0-1]"), ElementsAre("n0", "n1"));
  EXPECT_THAT(*ExpandNodeList("n[3,1]"), ElementsAre("n3", "n1"));
  EXPECT_THAT(*ExpandNodeList("n[0-1,05-07],x3"),
              ElementsAre("n0", "n1", "n05", "n06", "n07", "x3"));
  EXPECT_THAT(*ExpandNodeList("a-b-1,gpu-[098-101].cluster"),
              ElementsAre("a-b-1", "gpu-098.cluster", "gpu-099.cluster",
                          "gpu-100.cluster", "gpu-101.cluster"));
  EXPECT_THAT(*ExpandNodeList("r[1-2]n[0,8]"),
              ElementsAre("r1n0", "r1n8", "r2n0", "r2n8"));
  EXPECT_EQ(ExpandNodeList("n[0-1023]")->size(), 1024u);
}

TEST(ExpandNodeList, WhatIsNoList) {
  for (const char* list : {"", ",", "n1,", "n[", "n]", "n[1", "n[]", "n[1-]",
                           "n[-1]", "n[2-1]", "n[a]", "n[1-2-3]", "n[[1]]",
                           "n[0-99999999]", "n[0-65535],m", "n[99999999999]"}) {
    const auto hosts = ExpandNodeList(list);
    ASSERT_FALSE(hosts.ok()) << list;
    EXPECT_THAT(std::string(hosts.status().message()),
                HasSubstr("can't be read as a list of hosts"));
  }
}

TEST(ExpandTasksPerNode, Counts) {
  EXPECT_THAT(*ExpandTasksPerNode("4"), ElementsAre(4));
  EXPECT_THAT(*ExpandTasksPerNode("3,1"), ElementsAre(3, 1));
  EXPECT_THAT(*ExpandTasksPerNode("2(x3),1"), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(*ExpandTasksPerNode("1,2(x2)"), ElementsAre(1, 2, 2));
}

TEST(ExpandTasksPerNode, WhatAreNoCounts) {
  for (const char* list : {"", "2,", "two", "2(x", "2(x3", "2(3)", "2(x0)",
                           "2(x)", "-1", "(x2)", "2(x99999999)"}) {
    const auto counts = ExpandTasksPerNode(list);
    ASSERT_FALSE(counts.ok()) << list;
    EXPECT_THAT(std::string(counts.status().message()),
                HasSubstr("can't be read as a list of tasks on each node"));
  }
}

}  // namespace
}  // namespace capstan
