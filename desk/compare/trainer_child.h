// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_COMPARE_TRAINER_CHILD_H_
#define CAPSTAN_DESK_COMPARE_TRAINER_CHILD_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/subprocess.h"

namespace capstan {

struct TrainerChildResult {
  ChildEnd end;
  // The signal that asked this process to stop meanwhile, or 0.
  int stop_signal = 0;
};

// Runs this executable with `args` in its own process group until it exits,
// with output redirected to the file `log_path`; calls `tick` a few times per
// second. SIGINT or SIGTERM to this process ends the child and its ranks at
// once, as does killing this process. Call from a process without other
// threads.
absl::StatusOr<TrainerChildResult> RunTrainerChild(
    const std::vector<std::string>& args, const std::string& log_path,
    const std::function<void()>& tick);

// Why a child with that end and output failed: its own ERROR line, else how
// it ended.
std::string WhyItFailed(const ChildEnd& end, const std::string& output);

}  // namespace capstan

#endif  // CAPSTAN_DESK_COMPARE_TRAINER_CHILD_H_
