// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_GRPO_REWARDS_RESTARTED_PROGRAM_H_
#define CAPSTAN_PLUGINS_GRPO_REWARDS_RESTARTED_PROGRAM_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/subprocess.h"
#include "plugins/grpo/rewards/line_program.h"
#include "plugins/grpo/rewards/rewards.pb.h"

namespace capstan::grpo {

// A program that is asked about answers, a line about each. It starts when it
// is first asked, and anew where it dies or is too slow.
class RestartedProgram {
 public:
  // How often it is started anew for the same lines, by default.
  static constexpr int64_t kDefaultRestarts = 2;

  // Of `child`, what LineProgram::Start takes.
  RestartedProgram(::capstan::Program child, double seconds, int64_t restarts)
      : child_(std::move(child)), seconds_(seconds), restarts_(restarts) {}
  // FieldErrors are of the config's fields.
  static absl::StatusOr<std::unique_ptr<RestartedProgram>> Create(
      const Program& config);

  // Takes the line that the program says to line i; its error ends Ask.
  using Take = std::function<absl::Status(size_t i, absl::string_view line)>;
  // Sends `lines`, without ends, and calls `take` for each, in order; again
  // from the first one on if the program was started anew, as it may have left
  // one out. Errors name the program and the answer.
  absl::Status Ask(absl::Span<const std::string> lines, const Take& take);

 private:
  // Asks once, and counts what was taken.
  absl::Status Go(absl::Span<const std::string> lines, const Take& take,
                  size_t* taken);

  const ::capstan::Program child_;
  const double seconds_;
  const int64_t restarts_;
  std::unique_ptr<LineProgram> program_;  // null: to be started
};

}  // namespace capstan::grpo

#endif  // CAPSTAN_PLUGINS_GRPO_REWARDS_RESTARTED_PROGRAM_H_
