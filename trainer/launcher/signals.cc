// SPDX-License-Identifier: Apache-2.0
#include "trainer/launcher/signals.h"

#include <glog/logging.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "trainer/launcher/launcher.h"

namespace capstan {
namespace {

using Clock = std::chrono::steady_clock;

std::atomic<int> stop_signal{0};
std::atomic<int64_t> stopped_at{0};  // Clock's count
std::atomic<bool> second_ends_process{false};
std::atomic<bool> ends_before_met{false};
std::atomic<bool> ranks_have_met{false};
static_assert(std::atomic<int>::is_always_lock_free,
              "a signal handler may only use lock-free atomics");

// Async-signal-safe.
void OnStopSignal(int signal) {
  int before = 0;
  const bool first = stop_signal.compare_exchange_strong(before, signal);
  if (first) stopped_at = Clock::now().time_since_epoch().count();
  if (ends_before_met.load() && !ranks_have_met.load()) _exit(128 + signal);
  if (!second_ends_process.load()) return;
  const Clock::duration since(Clock::now().time_since_epoch().count() -
                              stopped_at.load());
  if (!first && IsDeliveredTwice(before, signal, since)) return;
  if (!first || !ranks_have_met.load()) _exit(128 + signal);
  constexpr char kNote[] = "stopping; a second signal stops at once\n";
  const ssize_t written = write(STDERR_FILENO, kNote, sizeof(kNote) - 1);
  (void)written;
}

sigset_t WatchedSignals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGCHLD);
  return set;
}

}  // namespace

bool IsDeliveredTwice(int first, int second,
                      std::chrono::nanoseconds since_first) {
  return first == SIGTERM && second == SIGTERM &&
         since_first < std::chrono::seconds(1);
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
  struct sigaction action = {};
  action.sa_handler = OnStopSignal;
  // Libraries may not handle interrupted system calls.
  action.sa_flags = SA_RESTART;
  PCHECK(sigaction(SIGINT, &action, nullptr) == 0);
  PCHECK(sigaction(SIGTERM, &action, nullptr) == 0);
}

StopSignals::StopSignals() {
  PCHECK(sigaction(SIGINT, nullptr, &old_int_) == 0);
  PCHECK(sigaction(SIGTERM, nullptr, &old_term_) == 0);
  InstallStopHandlers(SecondSignal::kIgnored);
}

StopSignals::~StopSignals() {
  sigaction(SIGINT, &old_int_, nullptr);
  sigaction(SIGTERM, &old_term_, nullptr);
}

std::string SignalName(int signal) {
  const char* name = sigabbrev_np(signal);
  if (name == nullptr) return absl::StrCat("signal ", signal);
  return absl::StrCat("SIG", name);
}

BlockedSignals::BlockedSignals() {
  const sigset_t set = WatchedSignals();
  PCHECK(sigprocmask(SIG_BLOCK, &set, &old_mask_) == 0);
  // With SIGCHLD ignored the kernel would reap our children.
  struct sigaction standard = {};
  standard.sa_handler = SIG_DFL;
  PCHECK(sigaction(SIGINT, &standard, &old_int_) == 0);
  PCHECK(sigaction(SIGTERM, &standard, &old_term_) == 0);
  PCHECK(sigaction(SIGCHLD, &standard, &old_child_) == 0);
  fd_ = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
  PCHECK(fd_ >= 0);
}

BlockedSignals::~BlockedSignals() {
  // Discard pending signals, which would now end the process.
  while (Next() != 0) {
  }
  close(fd_);
  sigaction(SIGINT, &old_int_, nullptr);
  sigaction(SIGTERM, &old_term_, nullptr);
  sigaction(SIGCHLD, &old_child_, nullptr);
  sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
}

int BlockedSignals::Next() const {
  signalfd_siginfo info;
  if (read(fd_, &info, sizeof(info)) != sizeof(info)) return 0;
  return static_cast<int>(info.ssi_signo);
}

void BlockedSignals::RestoreInChild() const {
  close(fd_);
  sigaction(SIGCHLD, &old_child_, nullptr);
  sigprocmask(SIG_SETMASK, &old_mask_, nullptr);
}

}  // namespace capstan
