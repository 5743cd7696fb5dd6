// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_PHASE_CLOCK_H_
#define CAPSTAN_TRAINER_SESSION_PHASE_CLOCK_H_

#include <array>

#include "plugins/sdk/process_group.h"
#include "trainer/profile/profiler.h"

namespace capstan {

// The phases that are timed in every step.
constexpr std::array<const char*, 5> kTimedPhases = {
    kDataPhase, kRolloutPhase, kForwardPhase, kBackwardPhase, kOptimizerPhase};

struct PhaseSeconds {
  // By kTimedPhases, without waits for collectives. On GPUs they are the
  // host's, which runs ahead of the device.
  std::array<double, kTimedPhases.size()> of = {};
  // Of forward, backward and optimizer: seconds in which the thread had no core
  // although it didn't wait for a collective. CPUs only.
  double off_core = 0.0;
};

// Adds up what a rank's training thread spends in the phases of its steps. A
// change of phase costs two reads of clocks and one of the group's counters.
// One thread, the same throughout.
class PhaseClock {
 public:
  // Begins to measure. `group` outlives this.
  void Start(const ProcessGroup* group);
  // The phase before ends, and `phase` begins; one that isn't timed, such as
  // "", is none.
  void Enter(const char* phase);
  // Returns the seconds since the last call.
  PhaseSeconds Take();

 private:
  struct Now {
    double seconds = 0.0;
    double on_core = 0.0;
    double exposed = 0.0;  // CPUs only: a device's counts come late
  };
  Now Read() const;

  const ProcessGroup* group_ = nullptr;
  bool on_cpu_ = false;
  int current_ = -1;  // in kTimedPhases; -1: none
  Now since_;
  PhaseSeconds spent_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_PHASE_CLOCK_H_
