// SPDX-License-Identifier: Apache-2.0
#include "cluster/launch/pmi1.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "cluster/launch/fake_pmi_for_test.h"

namespace capstan {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::chrono::steady_clock::time_point In(int seconds) {
  return std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
}

TEST(Pmi1, WhatOnePutsAllGet) {
  FakePmi server(2, "");
  std::thread other([&] {
    Pmi1 pmi(server.fd(1), In(30));
    EXPECT_TRUE(pmi.Init().ok());
    EXPECT_TRUE(pmi.Barrier().ok());
    EXPECT_EQ(*pmi.Get("name"), "a(b,c)=d");
    EXPECT_TRUE(pmi.Finalize().ok());
  });
  Pmi1 pmi(server.fd(0), In(30));
  EXPECT_TRUE(pmi.Init().ok());
  EXPECT_EQ(*pmi.Space(), "kvs_1_0_vm");
  EXPECT_TRUE(pmi.Put("name", "a(b,c)=d").ok());
  EXPECT_TRUE(pmi.Barrier().ok());
  EXPECT_TRUE(absl::IsNotFound(pmi.Get("nothing").status()));
  EXPECT_TRUE(pmi.Finalize().ok());
  other.join();
}

TEST(Pmi1, ABarrierThatOthersNeverReach) {
  FakePmi server(2, "");
  Pmi1 pmi(server.fd(0), In(1));
  EXPECT_TRUE(pmi.Init().ok());
  EXPECT_THAT(std::string(pmi.Barrier().message()),
              HasSubstr("have all its processes started?"));
}

TEST(Pmi1, AnotherProtocol) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  const std::string hello = "HTTP/1.1 400 Bad Request\n";
  ASSERT_EQ(write(ends[1], hello.data(), hello.size()),
            static_cast<ssize_t>(hello.size()));
  Pmi1 pmi(ends[0], In(30));
  EXPECT_THAT(std::string(pmi.Init().message()), HasSubstr("400 Bad Request"));
  close(ends[1]);
  EXPECT_FALSE(pmi.Barrier().ok());
  close(ends[0]);
}

TEST(HostsOfRanks, Mappings) {
  EXPECT_THAT(*HostsOfRanks("(vector,(0,1,3))", 3), ElementsAre(0, 0, 0));
  EXPECT_THAT(*HostsOfRanks("(vector,(0,3,2))", 5), ElementsAre(0, 0, 1, 1, 2));
  EXPECT_THAT(*HostsOfRanks("(vector,(0,1,3),(1,1,1))", 4),
              ElementsAre(0, 0, 0, 1));
  // One rank after the other round the hosts.
  EXPECT_THAT(*HostsOfRanks("(vector,(0,2,1))", 4), ElementsAre(0, 1, 0, 1));
  for (const char* bad : {"", "(vector)", "(vector,)", "(vector,(0,1))",
                          "(vector,(0,0,1))", "(vector,(a,1,1))"}) {
    EXPECT_FALSE(HostsOfRanks(bad, 2).ok()) << bad;
  }
}

}  // namespace
}  // namespace capstan
