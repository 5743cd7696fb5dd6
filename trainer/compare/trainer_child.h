// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_COMPARE_TRAINER_CHILD_H_
#define CAPSTAN_TRAINER_COMPARE_TRAINER_CHILD_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace capstan {

struct TrainerChildResult {
  int wait_status = 0;  // as of waitpid
  // The signal that this process was asked to stop by meanwhile, or 0.
  int stop_signal = 0;
};

// Runs this executable again with `args` until it ends, in a process group of
// its own, what it prints going to the file `log_path`; calls `tick` a few
// times a second. A SIGINT or SIGTERM to this process ends the child and its
// ranks at once; if this process is killed, they go too. From a process without
// other threads.
absl::StatusOr<TrainerChildResult> RunTrainerChild(
    const std::vector<std::string>& args, const std::string& log_path,
    const std::function<void()>& tick);

// Why a child with that status and that output failed: its own ERROR line, else
// how it ended.
std::string WhyItFailed(int wait_status, const std::string& output);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_COMPARE_TRAINER_CHILD_H_
