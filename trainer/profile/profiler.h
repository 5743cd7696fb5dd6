// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PROFILE_PROFILER_H_
#define CAPSTAN_TRAINER_PROFILE_PROFILER_H_

#include <cstdint>
#include <set>
#include <vector>

#include "plugins/sdk/process_group.h"
#include "trainer/profile/step_profile.h"

namespace capstan {

// Turns ProfileScope on for some steps of a run and collects what it writes
// down. One at a time in a process; called by the thread that runs the steps.
class Profiler {
 public:
  // `steps`: by their global number, 1 for a run's first.
  explicit Profiler(std::set<int64_t> steps) : steps_(std::move(steps)) {}
  // Turns it off.
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  // Around each step, with the rank's communication so far.
  void BeginStep(int64_t step, const CommunicationStats& communication);
  void EndStep(const CommunicationStats& communication);

  const std::vector<ProfiledStep>& steps() const { return done_; }

 private:
  const std::set<int64_t> steps_;
  bool on_ = false;
  ProfiledStep now_;
  CommunicationStats communication_;  // when the step began
  std::vector<ProfiledStep> done_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROFILE_PROFILER_H_
