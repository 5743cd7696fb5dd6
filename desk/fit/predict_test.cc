// SPDX-License-Identifier: Apache-2.0
#include "desk/fit/predict.h"

#include <gtest/gtest.h>

#include <vector>

namespace capstan::fit {
namespace {

constexpr double kMib = 1 << 20;

TEST(LinkTest, IsLinearBetweenWhatWasMeasuredAndKeepsTheLastRate) {
  const Link link({{2e6, 0.3}, {1e3, 0.1}, {1e6, 0.2}});
  EXPECT_DOUBLE_EQ(link.Seconds(0), 0.0);
  EXPECT_DOUBLE_EQ(link.Seconds(10), 0.1);
  EXPECT_DOUBLE_EQ(link.Seconds(1e6), 0.2);
  EXPECT_NEAR(link.Seconds(1.5e6), 0.25, 1e-9);
  EXPECT_NEAR(link.Seconds(4e6), 0.6, 1e-9);
  EXPECT_DOUBLE_EQ(Link().Seconds(1e9), 0.0);
}

TEST(LinkTest, OfALatencyAndARate) {
  const Link link(1e-3, 1e8);
  EXPECT_NEAR(link.Seconds(1e7), 0.101, 1e-9);
  EXPECT_NEAR(link.Seconds(1), 1e-3, 1e-6);
}

StepWork Work() {
  StepWork work;
  work.micro_seconds = 3.0;
  work.units = 10;
  return work;
}

TEST(StepSecondsTest, ComputesMicroStepsAndUpdates) {
  StepWork work = Work();
  work.accumulation = 4;
  work.update_seconds = 0.5;
  EXPECT_NEAR(StepSeconds(work), 12.5, 1e-9);
  work.overlaps = false;
  EXPECT_NEAR(StepSeconds(work), 12.5, 1e-9);
}

// Replicas' gradients: what backward can't hide comes at its end.
TEST(StepSecondsTest, HidesBucketsBehindBackward) {
  StepWork work = Work();
  work.traffic.gradients_once = 100 * kMib;
  work.traffic.all_reduce = true;
  work.link = Link(0, 100 * kMib);  // a second in all
  const double seconds = StepSeconds(work);
  // Three of five buckets at most are sent meanwhile; none after backward but
  // the last ones.
  EXPECT_GT(seconds, 3.2);
  EXPECT_LT(seconds, 3.7);
  work.link = Link(0, 1 * kMib);  // the link decides
  EXPECT_NEAR(StepSeconds(work), 100 + 1 + 0.2, 0.3);
}

TEST(StepSecondsTest, CoresThatComputeHideNothing) {
  StepWork work = Work();
  work.accumulation = 2;
  work.traffic.gradients_each = 10 * kMib;
  work.link = Link(0, 10 * kMib);
  work.overlaps = false;
  EXPECT_NEAR(StepSeconds(work), 2 * (3 + 1), 1e-6);
}

// Shards of units: forward and backward wait for a slow link, and hardly for a
// fast one.
TEST(StepSecondsTest, GathersUnitsAheadOfTheirUse) {
  StepWork work = Work();
  work.traffic.parameters_each = 20 * kMib;
  work.traffic.by_unit = true;
  work.link = Link(0, 100 * kMib);
  EXPECT_NEAR(StepSeconds(work), 3.02, 0.01);  // the first unit's, twice
  work.link = Link(0, 1 * kMib);
  EXPECT_NEAR(StepSeconds(work), 20, 1.0);
}

// What is gathered after the update hides behind the next forward.
TEST(StepSecondsTest, GathersOnceBesideTheForward) {
  StepWork work = Work();
  work.traffic.parameters_once = 10 * kMib;
  work.link = Link(0, 100 * kMib);
  EXPECT_NEAR(StepSeconds(work), 3.0, 0.02);
}

TEST(StepSecondsTest, ReplicasOfGroupsComeLast) {
  StepWork work = Work();
  work.traffic.gradients_once = 30 * kMib;
  work.traffic.to_replicas = 10 * kMib;
  work.link = Link(0, 1e12);
  work.replicas = Link(0, 10 * kMib);
  EXPECT_NEAR(StepSeconds(work), 4.0, 1e-3);
}

Measured Step(int64_t samples, int64_t accumulation, double seconds) {
  Measured measured;
  measured.ranks = 2;
  measured.checkpointing = "NONE";
  measured.samples = samples;
  measured.accumulation = accumulation;
  measured.seconds = seconds;
  return measured;
}

TEST(MicroSecondsTest, AreThoseOfTheNearestSizes) {
  const std::vector<Measured> measured = {Step(1, 8, 16.0), Step(4, 2, 8.0)};
  EXPECT_DOUBLE_EQ(MicroSeconds(measured, 2, 1, 0), 2.0);
  EXPECT_DOUBLE_EQ(MicroSeconds(measured, 2, 4, 0), 4.0);
  // A sample of two: between 2 and 1.
  EXPECT_DOUBLE_EQ(MicroSeconds(measured, 2, 2, 0), 3.0);
  EXPECT_DOUBLE_EQ(MicroSeconds(measured, 2, 8, 0), 8.0);
  EXPECT_DOUBLE_EQ(MicroSeconds(measured, 4, 1, 0), 0.0) << "other ranks";
}

TEST(MicroSecondsTest, LeaveOutCollectivesAndTheUpdate) {
  Measured one = Step(1, 4, 5.0);
  one.communication = 0.6;
  EXPECT_DOUBLE_EQ(MicroSeconds({one}, 2, 1, 0.4), 1.0);
}

TEST(MicroSecondsTest, OfRecomputedStepsOnly) {
  Measured one = Step(1, 1, 4.0);
  one.checkpointing = "EVERY_UNIT";
  EXPECT_DOUBLE_EQ(MicroSeconds({one}, 2, 1, 0), 3.0);
}

TEST(RecomputeFactorTest, IsMeasuredOrWhatTheWorkSays) {
  Measured one = Step(1, 1, 6.0);
  one.checkpointing = "EVERY_UNIT";
  EXPECT_DOUBLE_EQ(RecomputeFactor({one, Step(1, 1, 5.0)}, 2, "EVERY_UNIT"),
                   1.2);
  EXPECT_DOUBLE_EQ(RecomputeFactor({one}, 2, "EVERY_UNIT"), 4.0 / 3.0);
  EXPECT_DOUBLE_EQ(RecomputeFactor({one}, 2, "MLP"), 7.0 / 6.0);
  EXPECT_DOUBLE_EQ(RecomputeFactor({one}, 2, "NONE"), 1.0);
}

// Recorded on two hosts whose link tbf limited to 1 Gbit/s, on a busy machine:
// doctor's all-reduces, a step of run_distributed.pbtxt in one micro-batch of 8
// on two ranks of one host; and steps as they then were on two hosts.
TEST(StepSecondsTest, AsRecordedOnTwoHosts) {
  Measured one = Step(8, 1, 0.2403);
  one.communication = 0.0120;
  StepWork work;
  work.update_seconds = 0.0033;
  work.micro_seconds = MicroSeconds({one}, 2, 8, work.update_seconds);
  work.units = 7;
  work.link = Link({{4096, 0.000147},
                    {16384, 0.000122},
                    {65536, 0.000164},
                    {262144, 0.001568},
                    {1048576, 0.008704},
                    {4194304, 0.036377},
                    {16777216, 0.142179},
                    {67108864, 0.566092}});
  work.traffic.gradients_once = 3738624;
  work.traffic.all_reduce = true;
  EXPECT_NEAR(StepSeconds(work), 0.2495, 0.02495) << "capstan.ddp";
  work.update_seconds /= 2;
  work.traffic = Traffic();
  work.traffic.gradients_each = 3738624 / 2.0;
  work.traffic.parameters_once = 3738624 / 2.0;
  EXPECT_NEAR(StepSeconds(work), 0.2500, 0.02500) << "capstan.zero2";
}

}  // namespace
}  // namespace capstan::fit
