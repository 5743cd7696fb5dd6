// SPDX-License-Identifier: Apache-2.0
#include "cluster/launch/signals.h"

#include <errno.h>
#include <glog/logging.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "cluster/launch/launcher.h"
#include "cluster/launch/progress.h"

namespace capstan {
namespace {

using Clock = std::chrono::steady_clock;

std::atomic<int> stop_signal{0};
// The latest, and when it came, by Clock's count.
std::atomic<int> last_signal{0};
std::atomic<int64_t> last_at{0};
std::atomic<bool> second_ends_process{false};
std::atomic<bool> ends_before_met{false};
std::atomic<bool> ranks_have_met{false};
static_assert(std::atomic<int>::is_always_lock_free,
              "a signal handler may only use lock-free atomics");

// SLURM's default KillWait: the time from SIGTERM at the end of a job's time to
// SIGKILL.
constexpr int64_t kKillWait = 30;

constexpr int64_t kUnknown = -1;
std::atomic<int64_t> grace_seconds{kUnknown};
std::atomic<int64_t> end_time{kUnknown};

int64_t NumberIn(const char* variable) {
  const char* const text = getenv(variable);
  int64_t number = 0;
  return text != nullptr && absl::SimpleAtoi(text, &number) && number >= 0
             ? number
             : kUnknown;
}

// In a signal handler nothing may be allocated.
class Note {
 public:
  Note(char* out, size_t size) : out_(out), size_(size) {}

  Note& operator<<(const char* text) {
    const size_t length = std::min(std::strlen(text), size_ - used_);
    std::memcpy(out_ + used_, text, length);
    used_ += length;
    return *this;
  }
  Note& operator<<(int64_t number) {
    char digits[24];
    char* begin = digits + sizeof(digits) - 1;
    *begin = '\0';
    do {
      *--begin = static_cast<char>('0' + number % 10);
      number /= 10;
    } while (number > 0);
    return *this << begin;
  }
  size_t used() const { return used_; }

 private:
  char* const out_;
  const size_t size_;
  size_t used_ = 0;
};

// Async-signal-safe.
void WriteStopNote(int signal) {
  char note[512];
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  size_t used =
      StopNote(signal, now.tv_sec, StepMilliseconds(), note, sizeof(note) - 1);
  note[used++] = '\n';
  const ssize_t written = write(STDERR_FILENO, note, used);
  (void)written;
}

// Async-signal-safe.
void OnStopSignal(int signal) {
  const int error = errno;
  int none = 0;
  const bool first = stop_signal.compare_exchange_strong(none, signal);
  const int64_t now = Clock::now().time_since_epoch().count();
  const Clock::duration since(now - last_at.exchange(now));
  const int before = last_signal.exchange(signal);
  if (ends_before_met.load() && !ranks_have_met.load()) _exit(128 + signal);
  if (second_ends_process.load() &&
      (first || !IsDeliveredTwice(before, signal, since))) {
    if (!first || !ranks_have_met.load()) _exit(128 + signal);
    WriteStopNote(signal);
  }
  errno = error;
}

void OnPipeSignal(int) {}

using Actions = std::vector<std::pair<int, struct sigaction>>;

bool IsIgnored(int signal) {
  struct sigaction action = {};
  PCHECK(sigaction(signal, nullptr, &action) == 0);
  return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_IGN;
}

// Sets the handler and remembers the action before.
void Handle(int signal, void (*handler)(int), Actions* old = nullptr) {
  struct sigaction action = {};
  action.sa_handler = handler;
  // Libraries may not handle interrupted system calls.
  action.sa_flags = SA_RESTART;
  struct sigaction before = {};
  PCHECK(sigaction(signal, &action, &before) == 0);
  if (old != nullptr) old->emplace_back(signal, before);
}

void Restore(const Actions& old) {
  for (const auto& [signal, action] : old) {
    sigaction(signal, &action, nullptr);
  }
}

// Returns those of kStopSignals that this process doesn't ignore.
std::vector<int> WatchedStopSignals() {
  std::vector<int> watched;
  for (const int signal : kStopSignals) {
    if (signal != SIGHUP || !IsIgnored(signal)) watched.push_back(signal);
  }
  return watched;
}

}  // namespace

bool IsDeliveredTwice(int first, int second,
                      std::chrono::nanoseconds since_first) {
  if (second != SIGINT && second != SIGTERM) return true;
  if (second == SIGINT) return false;
  return first == SIGTERM ? since_first < std::chrono::seconds(1)
                          : first != SIGINT;
}

int StopRequested() { return stop_signal.load(); }

void EndBeforeRanksHaveMet() { ends_before_met = true; }

void RanksHaveMet() { ranks_have_met = true; }

void AdoptStop(int signal) {
  int none = 0;
  stop_signal.compare_exchange_strong(none, signal);
}

void InstallStopHandlers(SecondSignal second) {
  second_ends_process = second == SecondSignal::kEndsProcess;
  ReadGrace();
  for (const int signal : WatchedStopSignals()) Handle(signal, OnStopSignal);
  IgnorePipeSignals();
}

void IgnorePipeSignals() {
  // Programs that are started inherit SIG_IGN, but no handler.
  if (!IsIgnored(SIGPIPE)) Handle(SIGPIPE, OnPipeSignal);
}

StopSignals::StopSignals() {
  for (const int signal : WatchedStopSignals()) {
    Handle(signal, SIG_DFL, &old_);
  }
  Handle(SIGPIPE, OnPipeSignal, &old_);
  InstallStopHandlers(SecondSignal::kIgnored);
}

StopSignals::~StopSignals() { Restore(old_); }

std::string SignalName(int signal) {
  const char* name = sigabbrev_np(signal);
  if (name == nullptr) return absl::StrCat("signal ", signal);
  return absl::StrCat("SIG", name);
}

void ReadGrace() {
  grace_seconds = NumberIn("CAPSTAN_STOP_GRACE");
  end_time = NumberIn("SLURM_JOB_END_TIME");
}

size_t StopNote(int signal, int64_t now, int64_t step_ms, char* out,
                size_t size) {
  Note note(out, size);
  note << "stopping; ";
  int64_t left = grace_seconds.load();
  const int64_t end = end_time.load();
  if (left >= 0) {
    note << "it is killed in " << left << " s; ";
  } else if (end > now) {
    // A preempted job may have less.
    left = end - now;
    note << "the job ends in " << left << " s at the latest; ";
  } else if (end >= 0) {
    left = kKillWait;
    note << "the job's time is up, and SLURM kills it after its KillWait, by "
            "default "
         << left << " s; ";
  }
  if (left >= 0 && step_ms > 1000 * left) {
    note << "a step takes " << (step_ms + 999) / 1000
         << " s, so that this one may be lost; ";
  }
  note << (signal == SIGINT || signal == SIGTERM
               ? "a second signal stops at once"
               : "SIGINT stops at once");
  return note.used();
}

std::string StopText(int signal) {
  char note[512];
  const size_t used =
      StopNote(signal, time(nullptr), StepMilliseconds(), note, sizeof(note));
  return absl::StrCat(SignalName(signal), ": ", absl::string_view(note, used));
}

BlockedSignals::BlockedSignals() {
  std::vector<int> watched = WatchedStopSignals();
  // With SIGCHLD ignored the kernel would reap our children.
  watched.push_back(SIGCHLD);
  watched.push_back(SIGCONT);
  if (!IsIgnored(SIGTSTP)) watched.push_back(SIGTSTP);
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : watched) sigaddset(&set, signal);
  PCHECK(sigprocmask(SIG_BLOCK, &set, &old_mask_) == 0);
  for (const int signal : watched) Handle(signal, SIG_DFL, &old_);
  Handle(SIGPIPE, OnPipeSignal, &old_);
  ReadGrace();
  fd_ = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
  PCHECK(fd_ >= 0);
}

BlockedSignals::~BlockedSignals() {
  // Discard pending signals, which would now end the process.
  while (Next() != 0) {
  }
  close(fd_);
  Restore(old_);
  sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
}

int BlockedSignals::Next() const {
  signalfd_siginfo info;
  if (read(fd_, &info, sizeof(info)) != sizeof(info)) return 0;
  return static_cast<int>(info.ssi_signo);
}

void BlockedSignals::RestoreInChild() const {
  close(fd_);
  for (const auto& [signal, action] : old_) {
    if (signal == SIGCHLD || signal == SIGCONT || signal == SIGTSTP) {
      sigaction(signal, &action, nullptr);
    }
  }
  sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
}

}  // namespace capstan
