// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_WATCH_STEP_ROWS_H_
#define CAPSTAN_DESK_WATCH_STEP_ROWS_H_

#include <cstdint>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace capstan {

// The rows that a run trained on in a step: has `trainer who` find them, in a
// process of its own, one step at a time. Thread-safe.
class StepRows {
 public:
  // Those that add most to the step's loss.
  static constexpr int kMostRows = 100;

  // `trainer` is the program that is started, and ended after so many seconds.
  explicit StepRows(std::string trainer = "/proc/self/exe",
                    double limit_seconds = 300.0)
      : trainer_(std::move(trainer)), limit_seconds_(limit_seconds) {}

  // What `who --json` says (docs/who.md), without its tokens. Beside a run that
  // goes on it computes without GPUs, whose memory the run needs. UNAVAILABLE:
  // another step is looked for; DEADLINE_EXCEEDED: it took too long; CANCELLED:
  // `stop` returned true, which is asked a few times a second. Errors are for
  // the user.
  absl::StatusOr<nlohmann::json> Find(const std::string& folder, int64_t step,
                                      const std::function<bool()>& stop);

 private:
  const std::string trainer_;
  const double limit_seconds_;
  std::mutex one_;
};

}  // namespace capstan

#endif  // CAPSTAN_DESK_WATCH_STEP_ROWS_H_
