// SPDX-License-Identifier: Apache-2.0
#include "cluster/launch/child_output.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

namespace capstan {
namespace {

TEST(PrefixedLines, GivesWholeLinesOnly) {
  PrefixedLines lines("[rank 1] ");
  EXPECT_EQ(lines.Add("fir"), "");
  EXPECT_EQ(lines.Add("st\nsecond\nthi"), "[rank 1] first\n[rank 1] second\n");
  EXPECT_EQ(lines.Add("rd"), "");
  EXPECT_EQ(lines.Finish(), "[rank 1] third\n");
  EXPECT_EQ(lines.Finish(), "");
}

TEST(PrefixedLines, KeepsEmptyLines) {
  PrefixedLines lines("> ");
  EXPECT_EQ(lines.Add("\na\n\n"), "> \n> a\n> \n");
}

TEST(PrefixedLines, BreaksALineWithoutEnd) {
  PrefixedLines lines("> ");
  std::string out;
  for (int i = 0; i < 10; ++i) out += lines.Add(std::string(20000, 'x'));
  EXPECT_GT(out.size(), 100000);
}

TEST(ReadAvailable, DoesNotWaitAndSeesTheEnd) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_NONBLOCK), 0);
  std::string bytes;
  EXPECT_TRUE(ReadAvailable(ends[0], &bytes));
  EXPECT_EQ(bytes, "");
  EXPECT_TRUE(WriteAll(ends[1], "some"));
  EXPECT_TRUE(ReadAvailable(ends[0], &bytes));
  EXPECT_EQ(bytes, "some");
  close(ends[1]);
  EXPECT_FALSE(ReadAvailable(ends[0], &bytes));
  close(ends[0]);
}

}  // namespace
}  // namespace capstan
