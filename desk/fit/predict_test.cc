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
  EXPECT_NEAR(link.Seconds(10), 0.1, 1e-5);
  EXPECT_DOUBLE_EQ(link.Seconds(1e6), 0.2);
  EXPECT_NEAR(link.Seconds(1.5e6), 0.25, 1e-9);
  EXPECT_NEAR(link.Seconds(4e6), 0.6, 1e-9);
  EXPECT_DOUBLE_EQ(Link().Seconds(1e9), 0.0);
}

// A token bucket lets small ones pass at a speed that a step's many don't have.
TEST(LinkTest, BurstsAreNoFasterThanTheLargestsRate) {
  const Link link({{1e3, 0.001}, {1e5, 0.001}, {1e7, 1.001}});
  EXPECT_NEAR(link.Seconds(1e5), 0.011, 1e-9);
  EXPECT_NEAR(link.Seconds(1e7), 1.001, 1e-9);
}

TEST(LinkTest, OfALatencyAndARate) {
  const Link link(1e-3, 1e8);
  EXPECT_NEAR(link.Seconds(1e7), 0.101, 1e-9);
  EXPECT_NEAR(link.Seconds(1), 1e-3, 1e-6);
}

StepWork Work() {
  StepWork work;
  work.micro_seconds = 3.0;
  work.traffic.units = 10;
  return work;
}

TEST(TrafficTest, CountsBucketsAndCollectives) {
  Traffic traffic;
  traffic.gradients = 30 * kMib;
  traffic.gradients_once = 60 * kMib;
  traffic.all_reduce = true;
  EXPECT_EQ(traffic.Buckets(),
            (std::vector<double>{kMib, 25 * kMib, 4 * kMib}));
  EXPECT_EQ(traffic.Collectives(4), 3);
  Traffic units;
  units.by_unit = true;
  units.units = 5;
  units.gradients = units.gradients_each = units.parameters_each = 30 * kMib;
  EXPECT_EQ(units.Buckets().size(), 5);
  EXPECT_EQ(units.Collectives(2), 2 * (5 + 2 * 5 - 2));
}

TEST(StepSecondsTest, ComputesMicroStepsAndUpdates) {
  StepWork work = Work();
  work.accumulation = 4;
  work.update_seconds = 0.5;
  work.fixed_seconds = 0.25;
  EXPECT_NEAR(StepSeconds(work), 12.75, 1e-9);
  work.overlaps = false;
  EXPECT_NEAR(StepSeconds(work), 12.75, 1e-9);
}

// Replicas' gradients: what backward can't hide comes at its end.
TEST(StepSecondsTest, HidesBucketsBehindBackward) {
  StepWork work = Work();
  work.traffic.gradients = 50 * kMib;
  work.traffic.gradients_once = 100 * kMib;
  work.traffic.bucket = 12.5 * kMib;
  work.traffic.all_reduce = true;
  work.link = Link(0, 100 * kMib);  // a second in all
  const double seconds = StepSeconds(work);
  // Of five buckets the last, of 11.5 MiB of gradients, comes after backward.
  EXPECT_NEAR(seconds, 3.23, 0.01);
  // One bucket hides nothing.
  work.traffic.first_bucket = 50 * kMib;
  EXPECT_NEAR(StepSeconds(work), 4.0, 1e-6);
  work.traffic.first_bucket = kMib;
  work.link = Link(0, 1 * kMib);  // the link decides
  EXPECT_NEAR(StepSeconds(work), 100 + 1 + 0.2, 0.01);
}

TEST(StepSecondsTest, CoresThatComputeHideNothing) {
  StepWork work = Work();
  work.accumulation = 2;
  work.traffic.gradients = work.traffic.gradients_each = 10 * kMib;
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
  EXPECT_NEAR(StepSeconds(work), 3.01, 0.005);  // the first unit's
  work.link = Link(0, 1 * kMib);
  EXPECT_NEAR(StepSeconds(work), 20, 1.0);
}

// Units that are gathered once a step are so one ahead of the first forward.
TEST(StepSecondsTest, GathersUnitsOnceBesideTheForward) {
  StepWork work = Work();
  work.traffic.parameters_once = 10 * kMib;
  work.traffic.by_unit = true;
  work.link = Link(0, 100 * kMib);
  EXPECT_NEAR(StepSeconds(work), 3.01, 1e-6);
}

// Buckets are gathered whole: the first unit waits for the last bucket, which
// in a small model is nearly all.
TEST(StepSecondsTest, TheFirstUnitWaitsForItsWholeBucket) {
  StepWork work = Work();
  work.traffic.gradients = 10 * kMib;
  work.traffic.parameters_once = 10 * kMib;
  work.link = Link(0, 10 * kMib);
  EXPECT_NEAR(StepSeconds(work), 3.9, 1e-6);
  work.traffic.bucket = kMib;
  EXPECT_NEAR(StepSeconds(work), 3.1, 1e-6);
}

// Two reductions at most are under way; those of a micro-step are complete
// before the next one's last forward.
TEST(StepSecondsTest, ReductionsThatAreQueuedHoldComputation) {
  StepWork work = Work();
  work.traffic.by_unit = true;
  work.traffic.gradients = work.traffic.gradients_each = 10 * kMib;
  work.link = Link(0, 2 * kMib);  // half a second each, a backward 0.2
  // All but the first are sent one after the other, behind it and forward.
  EXPECT_NEAR(StepSeconds(work), 1 + 0.2 + 10 * 0.5, 1e-6);
  work.accumulation = 2;
  // A forward unit of 0.1 s comes after the last one's reduction, the others
  // beside it.
  EXPECT_NEAR(StepSeconds(work), 6.2 + 0.1 + 0.2 + 5.0, 1e-6);
  // Replicas' gradients aren't queued.
  work.traffic.all_reduce = true;
  EXPECT_NEAR(StepSeconds(work), 1.2 + 20 * 0.5, 0.2);
}

// What goes to replicas is sent bucket by bucket, by all of a host's ranks.
TEST(StepSecondsTest, ReplicasOfGroupsShareTheirHostsLink) {
  StepWork work = Work();
  work.traffic.by_unit = true;
  work.traffic.group = 4;
  work.traffic.gradients = 30 * kMib;
  work.traffic.gradients_once = 30 * kMib;
  work.traffic.to_replicas = 10 * kMib;
  work.link = Link(0, 1e12);
  work.replicas = Link(0, 10 * kMib);
  EXPECT_NEAR(StepSeconds(work), 3.3, 1e-3) << "three of ten come last";
  work.at_once = 4;
  EXPECT_NEAR(StepSeconds(work), 5.0, 0.7) << "the link decides";
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
  const Steps steps = {measured, 2};
  EXPECT_DOUBLE_EQ(MicroSeconds(steps, 1), 2.0);
  EXPECT_DOUBLE_EQ(MicroSeconds(steps, 4), 4.0);
  // A sample of two: between 2 and 1.
  EXPECT_DOUBLE_EQ(MicroSeconds(steps, 2), 3.0);
  EXPECT_DOUBLE_EQ(MicroSeconds(steps, 8), 8.0);
  EXPECT_DOUBLE_EQ(MicroSeconds({measured, 4}, 1), 0.0) << "other ranks";
}

TEST(MicroSecondsTest, LeaveOutWaitingAndTheMeasuredStepsUpdate) {
  Measured one = Step(1, 4, 5.0);
  one.exposed = 0.6;
  one.updated = 400;
  EXPECT_DOUBLE_EQ(MicroSeconds({{one}, 2, 1e-3}, 1), 1.0);
}

TEST(MicroSecondsTest, OfRecomputedStepsOnly) {
  Measured one = Step(1, 1, 4.0);
  one.checkpointing = "EVERY_UNIT";
  EXPECT_DOUBLE_EQ(MicroSeconds({{one}, 2}, 1), 3.0);
}

// 2 s a step and 1 s a micro-step of one sample.
TEST(FixedSecondsTest, AreWhatAccumulationDoesNotChange) {
  const std::vector<Measured> measured = {Step(1, 1, 3.0), Step(1, 8, 10.0),
                                          Step(8, 1, 6.0)};
  Steps steps = {measured, 2};
  steps.fixed = FixedSeconds(steps);
  EXPECT_DOUBLE_EQ(steps.fixed, 2.0);
  EXPECT_DOUBLE_EQ(MicroSeconds(steps, 1), 1.0);
  EXPECT_DOUBLE_EQ(MicroSeconds(steps, 8), 4.0);
  const std::vector<Measured> alone = {Step(1, 8, 10.0), Step(8, 1, 6.0)};
  EXPECT_DOUBLE_EQ(FixedSeconds({alone, 2}), 0.0);
  // Noise isn't taken for less than nothing.
  const std::vector<Measured> noisy = {Step(1, 1, 1.0), Step(1, 8, 10.0)};
  EXPECT_DOUBLE_EQ(FixedSeconds({noisy, 2}), 0.0);
}

TEST(ElementSecondsTest, IsNoMoreThanWhatAccumulationDoesNotChange) {
  std::vector<Measured> measured = {Step(1, 1, 3.0), Step(1, 8, 10.0)};
  for (Measured& one : measured) one.updated = 1000;
  EXPECT_DOUBLE_EQ(ElementSeconds({measured, 2, 1e-3}), 1e-3);
  EXPECT_DOUBLE_EQ(ElementSeconds({measured, 2, 3e-3}), 2e-3);
  EXPECT_DOUBLE_EQ(MicroSeconds({measured, 2, 2e-3}, 1), 1.0);
  EXPECT_DOUBLE_EQ(ElementSeconds({{measured[0]}, 2, 3e-3}), 3e-3);
  measured[0].seconds = 1.0;  // noise
  EXPECT_DOUBLE_EQ(ElementSeconds({measured, 2, 3e-3}), 3e-3);
}

TEST(HostLinkTest, IsOfFewAndOfManyCollectives) {
  // A micro-step of 1 s; a collective of 0.01 s and 1e-3 s for a byte.
  Measured few = Step(1, 4, 4.0 + 0.01 + 0.1);
  few.collectives = 1;
  few.sent = 100;
  few.exposed = 0.11;
  Measured many = Step(1, 4, 4.0 + 0.4 + 0.3);
  many.strategy = "units";
  many.collectives = 40;
  many.sent = 300;
  many.exposed = 0.1;  // less than it costs
  const std::vector<Measured> both = {few, many};
  const Link link = HostLink({both, 2}, Link());
  EXPECT_NEAR(link.Seconds(1e-9), 0.01, 1e-6);
  EXPECT_NEAR(link.Seconds(1000), 1.01, 1e-4);
  EXPECT_NEAR(HostLink({{few}, 2}, Link()).Seconds(100), 0.11, 1e-6);
  EXPECT_FALSE(HostLink({both, 4}, Link()).known());
}

TEST(ExpectedLongestTest, IsTheMeanOfOneAndNearsTheLongest) {
  const std::vector<int64_t> lengths = {10, 20, 30, 100};
  EXPECT_DOUBLE_EQ(ExpectedLongest(lengths, 1), 40.0);
  // Of two, by all 16 pairs.
  EXPECT_DOUBLE_EQ(ExpectedLongest(lengths, 2),
                   (1 * 10 + 3 * 20 + 5 * 30 + 7 * 100) / 16.0);
  EXPECT_NEAR(ExpectedLongest(lengths, 64), 100.0, 1e-3);
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
// on two ranks of one host; and steps as they then were on two hosts. What
// collectives add to computation is compared, since it is a tenth of a step.
TEST(StepSecondsTest, AsRecordedOnTwoHosts) {
  Measured one = Step(8, 1, 0.2403);
  one.exposed = 0.0120;
  one.updated = 942080;
  const std::vector<Measured> measured = {one};
  StepWork work;
  work.update_seconds = 0.0033;
  work.micro_seconds = MicroSeconds({measured, 2, 0.0033 / one.updated}, 8);
  work.traffic.units = 7;
  work.traffic.gradients = 3738624;
  const double alone = StepSeconds(work);
  EXPECT_NEAR(alone, 0.2283, 1e-6);
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
  EXPECT_NEAR(StepSeconds(work) - alone, 0.2495 - 0.2283, 0.008)
      << "capstan.ddp";
  work.traffic.all_reduce = false;
  work.traffic.gradients_once = 0;
  work.traffic.gradients_each = 3738624 / 2.0;
  work.traffic.parameters_once = 3738624 / 2.0;
  EXPECT_NEAR(StepSeconds(work) - alone, 0.2500 - 0.2283, 0.008)
      << "capstan.zero2";
}

}  // namespace
}  // namespace capstan::fit
