// SPDX-License-Identifier: Apache-2.0
#include "trainer/compare/trainer_child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "trainer/launcher/signals.h"

namespace capstan {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTickMilliseconds = 200;
// Grace between the request to stop at once and SIGKILL.
constexpr std::chrono::seconds kEndGrace{5};
constexpr char kErrorMark[] = "ERROR: ";

// Runs in the child after fork: only async-signal-safe calls.
[[noreturn]] void BecomeTrainer(const BlockedSignals& signals, pid_t parent,
                                int log_fd, char* const argv[]) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);
  const int null_fd = open("/dev/null", O_RDONLY);
  dup2(null_fd, STDIN_FILENO);
  dup2(log_fd, STDOUT_FILENO);
  dup2(log_fd, STDERR_FILENO);
  if (null_fd > STDERR_FILENO) close(null_fd);
  signals.RestoreInChild();
  execv("/proc/self/exe", argv);
  constexpr char kNote[] = "ERROR: the trainer can't be started again\n";
  const ssize_t written = write(STDERR_FILENO, kNote, sizeof(kNote) - 1);
  (void)written;
  _exit(127);
}

// Waits for the child and forwards signals.
TrainerChildResult Supervise(pid_t pid, const BlockedSignals& signals,
                             const std::function<void()>& tick) {
  TrainerChildResult result;
  Clock::time_point stopped_at;
  while (waitpid(pid, &result.wait_status, WNOHANG) != pid) {
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
  std::vector<std::string> words = {"trainer"};
  words.insert(words.end(), args.begin(), args.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(&word[0]);
  argv.push_back(nullptr);

  const BlockedSignals signals;
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) BecomeTrainer(signals, parent, log_fd, argv.data());
  const int fork_error = errno;
  close(log_fd);
  if (pid < 0) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a process for a run can't be started: ", strerror(fork_error)));
  }
  return Supervise(pid, signals, tick);
}

std::string WhyItFailed(int wait_status, const std::string& output) {
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
      WIFSIGNALED(wait_status)
          ? absl::StrCat("it was ended by ", SignalName(WTERMSIG(wait_status)))
          : absl::StrCat("it ended with exit code ", WEXITSTATUS(wait_status));
  return last_line.empty() ? how : absl::StrCat(how, " after: ", last_line);
}

}  // namespace capstan
