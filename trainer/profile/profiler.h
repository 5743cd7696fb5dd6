// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PROFILE_PROFILER_H_
#define CAPSTAN_TRAINER_PROFILE_PROFILER_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/profile_records.h"
#include "plugins/sdk/process_group.h"

namespace capstan {

// The phases of a step. The step opens scopes with the first five names; scopes
// within them may have any name.
constexpr char kDataPhase[] = "data";
constexpr char kRolloutPhase[] = "rollout";
constexpr char kForwardPhase[] = "forward";
constexpr char kBackwardPhase[] = "backward";
constexpr char kOptimizerPhase[] = "optimizer";
// Also the scope around a wait for a collective.
constexpr char kExposedPhase[] = "communication exposed";
constexpr char kRestPhase[] = "rest";
// Concurrent with the step, on other threads.
constexpr char kHiddenPhase[] = "communication hidden";
constexpr char kOtherThreadsPhase[] = "other threads";

struct ThreadRecord {
  ProfileRecord record;
  int thread = 0;
  ThreadRole role = ThreadRole::kTraining;
};

struct ProfiledStep {
  int64_t step = 0;  // from 1
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  double hidden_seconds = 0.0;  // communication hidden behind computation
  std::vector<ThreadRecord> records;
};

// Seconds and calls are means per step.
struct ProfileRow {
  std::string phase;
  // A scope within the phase, excluding inner scopes; "other": the phase's time
  // outside any scope. For kExposedPhase: the phase that waited.
  std::string name;
  double seconds = 0.0;
  double calls = 0.0;
  // Whether it is part of the step's own time; such rows add up to the step.
  bool in_step = true;
};

struct StepProfile {
  std::vector<int64_t> steps;
  double step_seconds = 0.0;
  // By phase in the order above, then by descending time.
  std::vector<ProfileRow> rows;
};

// Needs at least one step.
StepProfile Summarize(const std::vector<ProfiledStep>& steps);

// For the console: phases, their parts and shares of the step.
std::string ProfileTable(const StepProfile& profile);
// profile.json: StepProfile's fields, and each row's share of the step.
std::string ProfileJson(const StepProfile& profile);
// Chrome's Trace Event Format (complete events), for Perfetto and
// chrome://tracing; the process is the rank. Times are of the machine's
// monotonic clock, shared by all its ranks.
std::string TraceJson(const std::vector<ProfiledStep>& steps, int rank);

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

  // Turns ProfileScopes on while there is a ProfileListener, and else off.
  static void SwitchScopes();

 private:
  const std::set<int64_t> steps_;
  bool on_ = false;
  ProfiledStep now_;
  CommunicationStats communication_;  // at the start of the step
  std::vector<ProfiledStep> done_;
};

// Wraps `group` with a ProfileScope (kExposedPhase) around each wait for a
// collective, including those of groups split from it.
std::unique_ptr<ProcessGroup> ProfileWaits(std::unique_ptr<ProcessGroup> group);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROFILE_PROFILER_H_
