// SPDX-License-Identifier: Apache-2.0
#include "cluster/comm/hosts/host_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace capstan {
namespace {

using testing::ElementsAre;

std::vector<int> Positions(const HostLayout& layout) {
  std::vector<int> positions;
  for (int r = 0; r < layout.size(); ++r) {
    positions.push_back(layout.position(r));
    EXPECT_EQ(layout.rank_at(positions.back()), r);
  }
  return positions;
}

std::vector<int> SegmentBegins(const HostLayout& layout) {
  std::vector<int> begins;
  int end = 0;
  for (const HostSegment& segment : layout.segments()) {
    begins.push_back(segment.begin);
    EXPECT_EQ(segment.begin, end);
    end = segment.end;
    for (int r = segment.begin; r < segment.end; ++r) {
      EXPECT_EQ(layout.host_of(r), segment.host);
    }
  }
  EXPECT_EQ(end, layout.size());
  return begins;
}

TEST(HostLayout, ConsecutiveRanks) {
  const HostLayout layout(4, {7, 7, 7, 3, 3});
  EXPECT_EQ(layout.hosts(), 2);
  EXPECT_EQ(layout.host(), 1);
  EXPECT_EQ(layout.leader(0), 0);
  EXPECT_EQ(layout.leader(1), 3);
  EXPECT_FALSE(layout.is_leader());
  EXPECT_EQ(layout.locals(), 2);
  EXPECT_EQ(layout.local(4), 1);
  EXPECT_EQ(layout.begin(1), 3);
  EXPECT_EQ(layout.end(1), 5);
  EXPECT_THAT(Positions(layout), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(SegmentBegins(layout), ElementsAre(0, 3));
  EXPECT_EQ(layout.MostSegmentsOfAHost(), 1);
}

TEST(HostLayout, RanksInTurn) {
  const HostLayout layout(1, {0, 1, 0, 1, 1, 0});
  EXPECT_EQ(layout.hosts(), 2);
  EXPECT_TRUE(layout.is_leader());
  EXPECT_EQ(layout.locals(), 3);
  EXPECT_THAT(Positions(layout), ElementsAre(0, 3, 1, 4, 5, 2));
  EXPECT_THAT(SegmentBegins(layout), ElementsAre(0, 1, 2, 3, 5));
  EXPECT_EQ(layout.SegmentsOf(0), 3);
  EXPECT_EQ(layout.SegmentsOf(1), 2);
  EXPECT_EQ(layout.MostSegmentsOfAHost(), 3);
}

TEST(HostLayout, OneHost) {
  const HostLayout layout(0, {5, 5});
  EXPECT_EQ(layout.hosts(), 1);
  EXPECT_TRUE(layout.is_leader());
  EXPECT_THAT(SegmentBegins(layout), ElementsAre(0));
}

}  // namespace
}  // namespace capstan
