// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PROFILE_PROFILER_H_
#define CAPSTAN_TRAINER_PROFILE_PROFILER_H_

#include <cstdint>
#include <set>
#include <vector>

#include "plugins/sdk/process_group.h"
#include "trainer/profile/step_profile.h"

namespace capstan {

// Turns ProfileScope on for some steps of a run and collects the records. One
// per process at a time; called by the training thread.
class Profiler {
 public:
  // `steps`: global step numbers, from 1.
  explicit Profiler(std::set<int64_t> steps) : steps_(std::move(steps)) {}
  // Turns it off.
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  // Call around each step, with the rank's communication so far.
  void BeginStep(int64_t step, const CommunicationStats& communication);
  void EndStep(const CommunicationStats& communication);

  const std::vector<ProfiledStep>& steps() const { return done_; }

 private:
  const std::set<int64_t> steps_;
  bool on_ = false;
  ProfiledStep now_;
  CommunicationStats communication_;  // at the start of the step
  std::vector<ProfiledStep> done_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROFILE_PROFILER_H_
