// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/phase_clock.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "base/clock.h"
#include "plugins/sdk/idle_for_test.h"

namespace capstan {
namespace {

constexpr int kData = 0, kForward = 2, kBackward = 3;

// Whose waits the test tells.
class WaitingGroup : public IdleGroup {
 public:
  WaitingGroup() : IdleGroup(0, 2) {}
  CommunicationStats stats() const override { return stats_; }
  CommunicationStats stats_;
};

void ComputeFor(double seconds) {
  const double end = MonotonicSeconds() + seconds;
  while (MonotonicSeconds() < end) {
  }
}

TEST(PhaseClock, NothingBeforeItStarts) {
  PhaseClock clock;
  clock.Enter(kForwardPhase);
  clock.Enter("");
  EXPECT_EQ(clock.Take().of[kForward], 0.0);
}

TEST(PhaseClock, EachPhaseHasItsOwnAndTakeBeginsAnew) {
  WaitingGroup group;
  PhaseClock clock;
  clock.Start(&group);
  const double start = MonotonicSeconds();
  clock.Enter(kDataPhase);
  clock.Enter(kForwardPhase);
  ComputeFor(0.02);
  clock.Enter(kBackwardPhase);
  ComputeFor(0.01);
  clock.Enter("");
  ComputeFor(0.01);  // in none
  clock.Enter(kForwardPhase);
  clock.Enter("");
  const double all = MonotonicSeconds() - start;
  const PhaseSeconds phases = clock.Take();
  EXPECT_GE(phases.of[kForward], 0.02);
  EXPECT_GE(phases.of[kBackward], 0.01);
  EXPECT_LE(phases.of[kData] + phases.of[kForward] + phases.of[kBackward],
            all - 0.01);
  EXPECT_EQ(clock.Take().of[kForward], 0.0);
}

TEST(PhaseClock, WaitsForCollectivesAreNotThePhases) {
  WaitingGroup group;
  PhaseClock clock;
  clock.Start(&group);
  const double begun = MonotonicSeconds();
  clock.Enter(kBackwardPhase);
  const double start = MonotonicSeconds();
  usleep(20000);  // sleeps: as a wait for another rank does
  const double slept = MonotonicSeconds() - start;
  group.stats_.exposed_seconds += slept;
  clock.Enter("");
  const double all = MonotonicSeconds() - begun;
  const PhaseSeconds phases = clock.Take();
  EXPECT_LE(phases.of[kBackward], all - slept);
  EXPECT_LE(phases.off_core, all - slept);
}

TEST(PhaseClock, KnowsWhenTheThreadHadNoCore) {
  WaitingGroup group;
  PhaseClock clock;
  clock.Start(&group);
  clock.Enter(kForwardPhase);
  usleep(20000);  // sleeps: the thread has no core
  clock.Enter(kDataPhase);
  usleep(20000);  // sleeps: but data are waited for
  clock.Enter("");
  const PhaseSeconds phases = clock.Take();
  EXPECT_GE(phases.off_core, 0.019);
  EXPECT_LE(phases.off_core, phases.of[kForward]);
}

}  // namespace
}  // namespace capstan
