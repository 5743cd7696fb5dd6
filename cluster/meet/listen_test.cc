// SPDX-License-Identifier: Apache-2.0
#include "cluster/meet/listen.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "cluster/meet/meeting_for_test.h"

namespace capstan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

SocketAddress At(const std::string& host) {
  return *SocketAddress::Parse(host, 0);
}

std::vector<SocketAddress> All(const std::vector<std::string>& hosts) {
  std::vector<SocketAddress> addresses;
  for (const std::string& host : hosts) addresses.push_back(At(host));
  return addresses;
}

// A host with two networks, of which eth0 has the default route.
HostNetwork TwoNetworks() {
  return {{{"lo", At("127.0.0.1")},
           {"eth0", At("10.0.0.1")},
           {"ib0", At("10.1.0.1")},
           {"lo", At("::1")},
           {"eth0", At("fe80::1")},
           {"eth0", At("fd00::1")}},
          At("10.0.0.1")};
}

RankInfo Rank0(int nodes, const std::string& master_addr) {
  RankInfo info;
  info.world_size = 4;
  info.local_world_size = 2;
  info.nodes = nodes;
  info.master_addr = master_addr;
  info.master_port = 29500;
  return info;
}

// `master` is what the name stands for.
std::vector<std::string> ListensAt(const RankInfo& info,
                                   const std::vector<std::string>& master,
                                   const HostNetwork& network) {
  const auto addresses = AddressesToListenAt(info, All(master), network);
  EXPECT_TRUE(addresses.ok()) << addresses.status();
  std::vector<std::string> texts;
  if (!addresses.ok()) return texts;
  for (const SocketAddress& address : *addresses) {
    texts.push_back(address.text());
  }
  return texts;
}

TEST(ListenTest, OnOneHostOnlyOnLoopback) {
  EXPECT_THAT(ListensAt(Rank0(1, ""), {}, TwoNetworks()),
              ElementsAre("127.0.0.1:29500"));
  EXPECT_THAT(
      ListensAt(Rank0(1, "localhost"), {"127.0.0.1", "::1"}, TwoNetworks()),
      ElementsAre("127.0.0.1:29500"));
  EXPECT_THAT(ListensAt(Rank0(1, "::1"), {"::1"}, TwoNetworks()),
              ElementsAre("[::1]:29500"));
  RankInfo info = Rank0(1, "127.0.0.1");
  info.interface = "ib0";
  EXPECT_THAT(ListensAt(info, {"127.0.0.1"}, TwoNetworks()),
              ElementsAre("127.0.0.1:29500"));
}

TEST(ListenTest, WhereTheNameOfRank0LeadsTo) {
  EXPECT_THAT(ListensAt(Rank0(2, "n0"), {"10.1.0.1"}, TwoNetworks()),
              ElementsAre("10.1.0.1:29500"));
  // Debian's own entry for a host's name.
  EXPECT_THAT(ListensAt(Rank0(2, "n0"), {"127.0.1.1"}, TwoNetworks()),
              ElementsAre("10.0.0.1:29500", "127.0.1.1:29500"));
  // An address that isn't this host's: a service's, or behind a translation.
  EXPECT_THAT(ListensAt(Rank0(2, "service"), {"172.16.0.9"}, TwoNetworks()),
              ElementsAre("10.0.0.1:29500"));
  // Nobody said how many hosts there are.
  EXPECT_THAT(ListensAt(Rank0(1, "n0"), {"10.1.0.1"}, TwoNetworks()),
              ElementsAre("10.1.0.1:29500"));
  EXPECT_THAT(ListensAt(Rank0(2, "n0"), {"10.0.0.1", "fd00::1"}, TwoNetworks()),
              ElementsAre("10.0.0.1:29500", "[fd00::1]:29500"));
}

TEST(ListenTest, OnTheChosenInterface) {
  RankInfo info = Rank0(2, "");
  EXPECT_THAT(ListensAt(info, {}, TwoNetworks()),
              ElementsAre("10.0.0.1:29500"));
  info.interface = "ib0";
  EXPECT_THAT(ListensAt(info, {}, TwoNetworks()),
              ElementsAre("10.1.0.1:29500"));
  // MASTER_ADDR leads to the other one: the meeting is there, too.
  info.master_addr = "n0";
  EXPECT_THAT(ListensAt(info, {"10.0.0.1"}, TwoNetworks()),
              ElementsAre("10.1.0.1:29500", "10.0.0.1:29500"));
  info.interface = "eth7";
  EXPECT_THAT(
      MessageOf(AddressesToListenAt(info, {}, TwoNetworks()).status()),
      HasSubstr("no network interface eth7 that is up and has an address; it "
                "has eth0, ib0, lo"));
}

TEST(ListenTest, WithoutADefaultRoute) {
  HostNetwork network = TwoNetworks();
  network.default_route.reset();
  EXPECT_EQ(DefaultAddress(network).host(), "10.0.0.1");
  network.interfaces = {{"lo", At("127.0.0.1")},
                        {"eth0", At("fe80::1")},
                        {"eth0", At("fd00::1")}};
  EXPECT_EQ(DefaultAddress(network).host(), "fd00::1");
  network.interfaces = {{"lo", At("127.0.0.1")}};
  EXPECT_EQ(DefaultAddress(network).host(), "127.0.0.1");
}

TEST(ListenTest, APortInUseIsNamed) {
  SocketAddress address = Loopback();
  const auto other = ListenAt(&address);
  ASSERT_TRUE(other.ok()) << other.status();
  const RankInfo info = TestRank(0, 2, address.port());
  const absl::Status status =
      ListenForRanks(info, In(std::chrono::milliseconds(300))).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(MessageOf(status),
              HasSubstr(address.text() + ": Address already in use: another "
                                         "run or program has this port"));
}

TEST(NetworkTest, ThisHostHasLoopback) {
  EXPECT_EQ(InterfaceOf(Loopback()), "lo");
  EXPECT_EQ(AddressTowards(Loopback(9))->host(), "127.0.0.1");
  const auto found = Resolve("127.0.0.1", 80);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ((*found)[0].text(), "127.0.0.1:80");
}

TEST(NetworkTest, PausesGrowWithTheWait) {
  using std::chrono::milliseconds;
  using std::chrono::seconds;
  for (int i = 0; i < 100; ++i) {
    EXPECT_LE(PauseBeforeRetry(milliseconds(0), milliseconds(100)),
              milliseconds(1));
    EXPECT_GE(PauseBeforeRetry(seconds(100), milliseconds(100)),
              milliseconds(50));
    EXPECT_LE(PauseBeforeRetry(seconds(100), milliseconds(100)),
              milliseconds(100));
  }
}

}  // namespace
}  // namespace capstan
