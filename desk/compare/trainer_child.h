// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_COMPARE_TRAINER_CHILD_H_
#define CAPSTAN_DESK_COMPARE_TRAINER_CHILD_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/subprocess.h"

namespace capstan {

// A run of this executable in its own process group.
struct TrainerJob {
  std::vector<std::string> args;
  std::string log_path;  // gets what it prints, behind what is there
  // Polled a few times per second: whether it is to save and stop, for which it
  // gets SIGTERM, once. May be null.
  std::function<bool()> enough;
};

// Runs the jobs in order, as many at once as there are `places`, whose
// variables (Program::variables) a job in one has. Calls `ended` with a job's
// index, how it ended, and whether after such a signal: SIGINT or SIGTERM to
// this process ends all children and their ranks at once, as does killing this
// process, and is returned; else 0. Calls `tick` a few times per second. Call
// from a process without other threads.
absl::StatusOr<int> RunTrainers(
    const std::vector<TrainerJob>& jobs,
    const std::vector<std::vector<std::string>>& places,
    const std::function<void(size_t job, const ChildEnd& end, bool stopped)>&
        ended,
    const std::function<void()>& tick);

struct TrainerChildResult {
  ChildEnd end;
  // The signal that asked this process to stop meanwhile, or 0.
  int stop_signal = 0;
};

// The same for a single job.
absl::StatusOr<TrainerChildResult> RunTrainerChild(
    const std::vector<std::string>& args, const std::string& log_path,
    const std::function<void()>& tick);

// Why a child with that end and output failed: its own ERROR line, else how
// it ended.
std::string WhyItFailed(const ChildEnd& end, const std::string& output);

}  // namespace capstan

#endif  // CAPSTAN_DESK_COMPARE_TRAINER_CHILD_H_
