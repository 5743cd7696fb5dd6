// SPDX-License-Identifier: Apache-2.0
#include "cluster/comm/communication_meter.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <memory>

namespace capstan {
namespace {

TEST(CommunicationMeter, CountsTimeOnce) {
  CommunicationMeter meter;
  EXPECT_EQ(meter.stats().busy_seconds, 0);
  const auto begin = std::chrono::steady_clock::now();
  meter.Started();
  meter.Started();
  // sleeps: the time that is counted
  usleep(20000);
  EXPECT_GE(meter.stats().busy_seconds, 0.02);
  meter.Finished();
  // sleeps: the time that is counted
  usleep(20000);
  meter.Finished();
  const std::chrono::duration<double> whole =
      std::chrono::steady_clock::now() - begin;
  const double busy = meter.stats().busy_seconds;
  EXPECT_GE(busy, 0.04);
  EXPECT_LE(busy, whole.count());
  // sleeps: time that isn't counted
  usleep(20000);
  EXPECT_EQ(meter.stats().busy_seconds, busy);
}

TEST(CommunicationMeter, TellsItsParent) {
  const auto parent = std::make_shared<CommunicationMeter>();
  CommunicationMeter one(parent);
  CommunicationMeter other(parent);
  one.Sent(5);
  other.Sent(7);
  parent->Sent(1);
  one.Waited(std::chrono::milliseconds(250));
  EXPECT_EQ(one.stats().bytes_sent, 5);
  EXPECT_EQ(other.stats().bytes_sent, 7);
  EXPECT_EQ(parent->stats().bytes_sent, 13);
  EXPECT_EQ(one.stats().exposed_seconds, 0.25);
  EXPECT_EQ(other.stats().exposed_seconds, 0);
  EXPECT_EQ(parent->stats().exposed_seconds, 0.25);
}

// As on a GPU, whose times are known later.
TEST(CommunicationMeter, AddsWhatADeviceHasMeasured) {
  const auto parent = std::make_shared<CommunicationMeter>();
  CommunicationMeter one(parent);
  one.Measured(0.5, 0.125);
  one.Measured(0.25, 0.0);
  for (const CommunicationStats& stats : {one.stats(), parent->stats()}) {
    EXPECT_EQ(stats.busy_seconds, 0.75);
    EXPECT_EQ(stats.exposed_seconds, 0.125);
  }
}

}  // namespace
}  // namespace capstan
