// SPDX-License-Identifier: Apache-2.0
#include "desk/compare/trainer_child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <chrono>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/types/optional.h"
#include "base/subprocess.h"
#include "cluster/launch/signals.h"

namespace capstan {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTickMilliseconds = 200;
// Grace between the request to stop at once and SIGKILL.
constexpr std::chrono::seconds kEndGrace{5};
constexpr char kErrorMark[] = "ERROR: ";

// Waits for the child and forwards signals.
TrainerChildResult Supervise(pid_t pid, const BlockedSignals& signals,
                             const std::function<void()>& tick) {
  TrainerChildResult result;
  Clock::time_point stopped_at;
  absl::optional<ChildEnd> end;
  while (!(end = WaitFor(pid, 0)).has_value()) {
    pollfd ready = {signals.fd(), POLLIN, 0};
    poll(&ready, 1, kTickMilliseconds);
    while (const int signal = signals.Next()) {
      if (signal == SIGCHLD) continue;
      result.stop_signal = signal;
      stopped_at = Clock::now();
      // A second signal makes it stop its ranks without saving.
      kill(pid, SIGINT);
      kill(pid, SIGTERM);
    }
    if (result.stop_signal == 0) {
      tick();
    } else if (Clock::now() > stopped_at + kEndGrace) {
      kill(-pid, SIGKILL);
    }
  }
  result.end = *end;
  return result;
}

}  // namespace

absl::StatusOr<TrainerChildResult> RunTrainerChild(
    const std::vector<std::string>& args, const std::string& log_path,
    const std::function<void()>& tick) {
  const int log_fd =
      open(log_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (log_fd < 0) {
    return absl::PermissionDeniedError(
        absl::StrCat(log_path, " can't be written: ", strerror(errno)));
  }
  Program trainer;
  trainer.words = {"trainer"};
  trainer.words.insert(trainer.words.end(), args.begin(), args.end());
  trainer.path = "/proc/self/exe";
  trainer.input = Program::kNull;
  trainer.output = trainer.errors = log_fd;
  trainer.inherits_descriptors = true;
  trainer.own_group = true;
  trainer.dies_with_parent = true;
  const BlockedSignals signals;
  const absl::StatusOr<pid_t> pid = StartProgram(trainer);
  close(log_fd);
  if (!pid.ok()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a process for a run can't be started: ", pid.status().message()));
  }
  return Supervise(*pid, signals, tick);
}

std::string WhyItFailed(const ChildEnd& end, const std::string& output) {
  std::string last_line;
  std::string error;
  for (const absl::string_view line :
       absl::StrSplit(output, '\n', absl::SkipWhitespace())) {
    last_line = std::string(line);
    if (absl::StartsWith(line, kErrorMark)) {
      error = std::string(absl::StripPrefix(line, kErrorMark));
    }
  }
  if (!error.empty()) return error;
  const std::string how =
      end.signal > 0 ? absl::StrCat("it was ended by ", SignalName(end.signal))
                     : absl::StrCat("it ended with ", end.Text());
  return last_line.empty() ? how : absl::StrCat(how, " after: ", last_line);
}

}  // namespace capstan
