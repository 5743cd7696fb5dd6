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
#include "base/status.h"
#include "base/subprocess.h"
#include "cluster/launch/signals.h"

namespace capstan {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTickMilliseconds = 200;
// Grace between the request to stop at once and SIGKILL.
constexpr std::chrono::seconds kEndGrace{5};
constexpr char kErrorMark[] = "ERROR: ";

struct Child {
  pid_t pid = -1;  // -1: none in this place
  size_t job = 0;
  bool told = false;  // that it is enough
};

absl::StatusOr<pid_t> Start(const TrainerJob& job,
                            const std::vector<std::string>& variables) {
  const int log_fd = open(job.log_path.c_str(),
                          O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (log_fd < 0) {
    return absl::PermissionDeniedError(
        absl::StrCat(job.log_path, " can't be written: ", strerror(errno)));
  }
  Program trainer;
  trainer.words = {"trainer"};
  trainer.words.insert(trainer.words.end(), job.args.begin(), job.args.end());
  trainer.path = "/proc/self/exe";
  trainer.variables = variables;
  trainer.input = Program::kNull;
  trainer.output = trainer.errors = log_fd;
  trainer.inherits_descriptors = true;
  trainer.own_group = true;
  trainer.dies_with_parent = true;
  absl::StatusOr<pid_t> pid = StartProgram(trainer);
  close(log_fd);
  if (pid.ok()) return pid;
  return absl::ResourceExhaustedError(absl::StrCat(
      "a process for a run can't be started: ", pid.status().message()));
}

// Starts jobs where there is a place, waits for them and forwards signals.
class Pool {
 public:
  Pool(const std::vector<TrainerJob>& jobs,
       const std::vector<std::vector<std::string>>& places)
      : jobs_(jobs), places_(places), children_(places.size()) {}

  absl::StatusOr<int> Run(
      const std::function<void(size_t, const ChildEnd&, bool)>& ended,
      const std::function<void()>& tick) {
    const BlockedSignals signals;
    for (;;) {
      // After an error those that run end with this process.
      if (stop_signal_ == 0) CAPSTAN_RETURN_IF_ERROR(StartSome());
      if (!Collect(ended)) return stop_signal_;
      pollfd ready = {signals.fd(), POLLIN, 0};
      poll(&ready, 1, kTickMilliseconds);
      while (const int signal = signals.Next()) {
        if (signal != SIGCHLD) Stop(signal);
      }
      if (stop_signal_ == 0) {
        tick();
        TellEnough();
      } else if (Clock::now() > stopped_at_ + kEndGrace) {
        ForEach([](const Child& child) { kill(-child.pid, SIGKILL); });
      }
    }
  }

 private:
  template <typename Use>
  void ForEach(const Use& use) {
    for (Child& child : children_) {
      if (child.pid > 0) use(child);
    }
  }

  absl::Status StartSome() {
    for (size_t i = 0; i < children_.size() && next_ < jobs_.size(); ++i) {
      if (children_[i].pid > 0) continue;
      CAPSTAN_ASSIGN_OR_RETURN(const pid_t pid,
                               Start(jobs_[next_], places_[i]));
      children_[i] = {pid, next_++, false};
    }
    return absl::OkStatus();
  }

  // Whether any is still running, or to be started.
  bool Collect(
      const std::function<void(size_t, const ChildEnd&, bool)>& ended) {
    bool running = false;
    ForEach([&](Child& child) {
      const absl::optional<ChildEnd> end = WaitFor(child.pid, 0);
      if (end.has_value()) {
        child.pid = -1;
        ended(child.job, *end, stop_signal_ != 0);
      }
      running = running || child.pid > 0;
    });
    return running || (stop_signal_ == 0 && next_ < jobs_.size());
  }

  void Stop(int signal) {
    stop_signal_ = signal;
    stopped_at_ = Clock::now();
    // A second signal makes it stop its ranks without saving.
    ForEach([](const Child& child) {
      kill(child.pid, SIGINT);
      kill(child.pid, SIGTERM);
    });
  }

  void TellEnough() {
    ForEach([this](Child& child) {
      const TrainerJob& job = jobs_[child.job];
      if (child.told || !job.enough || !job.enough()) return;
      child.told = true;
      kill(child.pid, SIGTERM);
    });
  }

  const std::vector<TrainerJob>& jobs_;
  const std::vector<std::vector<std::string>>& places_;
  std::vector<Child> children_;  // by place
  size_t next_ = 0;
  int stop_signal_ = 0;
  Clock::time_point stopped_at_;
};

}  // namespace

absl::StatusOr<int> RunTrainers(
    const std::vector<TrainerJob>& jobs,
    const std::vector<std::vector<std::string>>& places,
    const std::function<void(size_t job, const ChildEnd& end, bool stopped)>&
        ended,
    const std::function<void()>& tick) {
  return Pool(jobs, places).Run(ended, tick);
}

absl::StatusOr<TrainerChildResult> RunTrainerChild(
    const std::vector<std::string>& args, const std::string& log_path,
    const std::function<void()>& tick) {
  TrainerChildResult result;
  CAPSTAN_ASSIGN_OR_RETURN(
      result.stop_signal,
      RunTrainers(
          {{args, log_path, nullptr}}, {{}},
          [&](size_t, const ChildEnd& end, bool) { result.end = end; }, tick));
  return result;
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
