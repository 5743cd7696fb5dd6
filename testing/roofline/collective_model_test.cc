// SPDX-License-Identifier: Apache-2.0
#include "testing/roofline/collective_model.h"

#include <gtest/gtest.h>

namespace capstan {
namespace {

constexpr double kUs = 1e-6;

// An H100 at 0.8 of NVLink's 450 GB/s, with a port of 50 GB/s.
CollectiveLinks Links() {
  CollectiveLinks links;
  links.inside = 360e9;
  links.network = 50e9;
  return links;
}

double Seconds(const CollectiveCall& call, CollectiveLinks links = Links()) {
  return TimeOf(call, links, /*slower=*/1.0).seconds();
}

CollectiveCall Gather(double sent, int ranks = 8, int hosts = 1) {
  return {CollectiveKind::kOther, sent, ranks, hosts};
}
CollectiveCall Sum(double sent, int ranks = 8, int hosts = 1) {
  return {CollectiveKind::kAllReduce, sent, ranks, hosts};
}

TEST(CollectiveModel, SmallOnesAreAllLatency) {
  // LL: 6.6 us and 7 hops of 0.6.
  EXPECT_NEAR(Seconds(Gather(1)), 10.8 * kUs, 0.01 * kUs);
  // A tree's 2 (8 - 1) hops are as many as a ring's.
  EXPECT_NEAR(Seconds(Sum(1)), (6.6 + 14 * 0.6) * kUs, 0.01 * kUs);
}

TEST(CollectiveModel, LargeOnesAreAllBandwidth) {
  EXPECT_NEAR(Seconds(Gather(36e9)), 0.1, 0.001);
  const CollectiveTime time = TimeOf(Gather(36e9), Links(), 1.0);
  EXPECT_GT(time.moving, 100 * time.latency);
}

TEST(CollectiveModel, BandwidthGrowsWithTheSize) {
  double last = 0;
  for (const double sent : {1e3, 1e5, 1e6, 1e7, 1e8, 1e9}) {
    const double bandwidth = sent / Seconds(Gather(sent));
    EXPECT_GT(bandwidth, last) << sent;
    last = bandwidth;
  }
  // 25 MiB of gradients among 8 reach most of it.
  EXPECT_GT(44e6 / Seconds(Sum(44e6)), 0.6 * 360e9);
}

TEST(CollectiveModel, SlowerLatenciesCountOnlyOnce) {
  EXPECT_NEAR(TimeOf(Gather(1), Links(), 2.0).latency,
              2 * TimeOf(Gather(1), Links(), 1.0).latency, 1e-12);
}

TEST(CollectiveModel, MulticastSumsFasterWithinAHost) {
  CollectiveLinks links = Links();
  links.multicast = true;
  EXPECT_LT(Seconds(Sum(1e9), links), 0.8 * Seconds(Sum(1e9)));
  EXPECT_EQ(Seconds(Sum(1e9, 16, 2), links), Seconds(Sum(1e9, 16, 2)));
  EXPECT_EQ(Seconds(Gather(1e9), links), Seconds(Gather(1e9)));
}

// Four hosts of 8 share 8 ports each, and are as fast as those; four GPUs, each
// on a host of its own, have one port each.
TEST(CollectiveModel, HostsAreLinkedByTheirPorts) {
  EXPECT_NEAR(Seconds(Gather(36e9, 32, 4)), 0.1, 0.002);
  EXPECT_NEAR(Seconds(Gather(5e9, 4, 4)), 0.1, 0.002);
  CollectiveLinks slow = Links();
  slow.network = 12.5e9;
  EXPECT_NEAR(Seconds(Gather(10e9, 32, 4), slow), 0.1, 0.002);
}

TEST(CollectiveModel, MoreHostsHaveLongerLatencies) {
  EXPECT_GT(Seconds(Gather(1, 16, 2)), Seconds(Gather(1, 16, 1)));
  EXPECT_GT(Seconds(Gather(1, 32, 4)), Seconds(Gather(1, 16, 2)));
  // From some size on a tree has fewer hops than a ring.
  EXPECT_LT(Seconds(Sum(1, 256, 32)), Seconds(Gather(1, 256, 32)) * 2);
}

// 24 of the 31 others are on other hosts.
TEST(CollectiveModel, AllToAllGoesThroughItsOwnPort) {
  const CollectiveCall call = {CollectiveKind::kAllToAll, 5e9, 32, 4};
  EXPECT_NEAR(Seconds(call), 5e9 * (24.0 / 31) / 50e9, 0.002);
}

}  // namespace
}  // namespace capstan
