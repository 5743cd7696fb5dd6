// SPDX-License-Identifier: Apache-2.0
//
// From the records of profiled steps to what a user reads.
#ifndef CAPSTAN_TRAINER_PROFILE_STEP_PROFILE_H_
#define CAPSTAN_TRAINER_PROFILE_STEP_PROFILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/profile_records.h"

namespace capstan {

// The parts of a step. The scopes that the step itself opens bear the names of
// the first four; those inside them may have any name.
constexpr char kDataPhase[] = "data";
constexpr char kForwardPhase[] = "forward";
constexpr char kBackwardPhase[] = "backward";
constexpr char kOptimizerPhase[] = "optimizer";
// Also the name of the scope in which a thread waits for a collective.
constexpr char kExposedPhase[] = "communication exposed";
constexpr char kRestPhase[] = "rest";
// Beside the step, by other threads.
constexpr char kHiddenPhase[] = "communication hidden";
constexpr char kOtherThreadsPhase[] = "other threads";

struct ThreadRecord {
  ProfileRecord record;
  int thread = 0;
  ThreadRole role = ThreadRole::kTraining;
};

struct ProfiledStep {
  int64_t step = 0;  // 1 for a run's first
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  double hidden_seconds = 0.0;  // of communication, behind computation
  std::vector<ThreadRecord> records;
};

// Seconds and calls are means of a step.
struct ProfileRow {
  std::string phase;
  // A scope within the phase, without the scopes within that; "other": what no
  // scope within the phase covers. Of kExposedPhase: the phase that waited.
  std::string name;
  double seconds = 0.0;
  double calls = 0.0;
  // Whether it is time of the step itself: these rows add up to the step.
  bool in_step = true;
};

struct StepProfile {
  std::vector<int64_t> steps;
  double step_seconds = 0.0;
  // By phase in the order above, then the longest first.
  std::vector<ProfileRow> rows;
};

// At least one step.
StepProfile Summarize(const std::vector<ProfiledStep>& steps);

// For the console: phases, their parts, shares of the step.
std::string ProfileTable(const StepProfile& profile);
// profile.json: the fields of StepProfile, and each row's share of the step.
std::string ProfileJson(const StepProfile& profile);
// The Trace Event Format of Chrome ("Trace Event Format", complete events), as
// Perfetto and chrome://tracing open it; the process is the rank. Times are of
// the machine's monotonic clock, alike in all ranks of a machine.
std::string TraceJson(const std::vector<ProfiledStep>& steps, int rank);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROFILE_STEP_PROFILE_H_
