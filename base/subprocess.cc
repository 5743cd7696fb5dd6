// SPDX-License-Identifier: Apache-2.0
#include "base/subprocess.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <iostream>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/status.h"

namespace capstan {
namespace {

constexpr rlim_t kMostDescriptors = 65536;

// nullopt: it is running.
absl::optional<ChildEnd> Reap(pid_t child, int options) {
  int status = 0;
  rusage usage = {};
  pid_t ended = -1;
  do {
    ended = wait4(child, &status, options, &usage);
  } while (ended < 0 && errno == EINTR);
  if (ended == 0) return absl::nullopt;
  ChildEnd end;
  if (ended != child) return end;
  if (WIFEXITED(status)) end.code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) end.signal = WTERMSIG(status);
  end.cpu_seconds = usage.ru_utime.tv_sec + usage.ru_stime.tv_sec;
  return end;
}

void DieWith(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // It may have died before.
  if (getppid() != parent) _exit(1);
}

absl::string_view NameOf(absl::string_view variable) {
  return variable.substr(0, variable.find('='));
}

std::vector<char*> Environment(const std::vector<std::string>& variables) {
  std::vector<char*> all;
  for (char** old = environ; old != nullptr && *old != nullptr; ++old) {
    if (std::none_of(variables.begin(), variables.end(),
                     [&](absl::string_view variable) {
                       return NameOf(variable) == NameOf(*old);
                     })) {
      all.push_back(*old);
    }
  }
  for (const std::string& variable : variables) {
    if (NameOf(variable) != variable) {
      all.push_back(const_cast<char*>(variable.c_str()));
    }
  }
  all.push_back(nullptr);
  return all;
}

// The functions below run in a child that shares this process's memory until
// exec: they allocate nothing. On failure errno says why.

// Each is copied first: it may be one that another replaces.
bool SetStandardDescriptors(std::array<int, 3> from) {
  for (int& fd : from) {
    if (fd == Program::kNull) fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (fd < 0) return false;
  }
  for (int to = 0; to < 3; ++to) {
    if (dup2(from[to], to) < 0) return false;
  }
  return true;
}

void CloseOthersOnExec() {
  if (syscall(SYS_close_range, 3u, ~0u, CLOSE_RANGE_CLOEXEC) == 0) return;
  // Before Linux 5.11.
  rlimit most = {};
  getrlimit(RLIMIT_NOFILE, &most);
  const auto end = static_cast<int>(std::min(most.rlim_cur, kMostDescriptors));
  for (int fd = 3; fd < end; ++fd) fcntl(fd, F_SETFD, FD_CLOEXEC);
}

// A handler would act on this process's memory.
void ResetSignals() {
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction action = {};
    if (sigaction(signal, nullptr, &action) != 0) continue;
    if (action.sa_handler == SIG_IGN || action.sa_handler == SIG_DFL) continue;
    action = {};
    sigaction(signal, &action, nullptr);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

// What exec takes.
struct Start {
  const char* path;
  std::vector<char*> words;
  std::vector<char*> variables;
  std::array<int, 3> standard;
  pid_t parent;
  SandboxDoor* sandbox;  // null: none
};

// Writes errno to `failure` if the program can't be started.
[[noreturn]] void Become(const Program& program, const Start& start,
                         int failure) {
  ResetSignals();
  if (program.dies_with_parent) DieWith(start.parent);
  if (program.own_group) setpgid(0, 0);
  // Not one that becomes a standard descriptor.
  failure = fcntl(failure, F_DUPFD_CLOEXEC, 3);
  if (SetStandardDescriptors(start.standard)) {
    if (!program.inherits_descriptors) CloseOthersOnExec();
    if (start.sandbox == nullptr || start.sandbox->Enter()) {
      execvpe(start.path, start.words.data(), start.variables.data());
    }
  }
  const int error = errno;
  const ssize_t written = write(failure, &error, sizeof(error));
  (void)written;
  _exit(127);
}

// Unlike fork, copies no page tables, and needs no memory where the kernel
// promises none. Unlike posix_spawn, allows DieWith.
pid_t ForkAndBecome(const Program& program, const Start& start, int failure) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const pid_t child = vfork();
  if (child == 0) Become(program, start, failure);
  const int error = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return child;
}

}  // namespace

Pipe::Pipe() {
  if (pipe2(ends_, O_CLOEXEC) != 0) ends_[0] = ends_[1] = -1;
}

Pipe::~Pipe() {
  Close(0);
  Close(1);
}

int Pipe::ReleaseRead() { return std::exchange(ends_[0], -1); }

void Pipe::Close(int end) {
  if (ends_[end] >= 0) close(ends_[end]);
  ends_[end] = -1;
}

std::string ChildEnd::Text() const {
  if (!known()) return "how it ended isn't known";
  return signal > 0 ? absl::StrCat("signal ", signal)
                    : absl::StrCat("exit code ", code);
}

ChildEnd WaitFor(pid_t child) { return *Reap(child, 0); }

absl::optional<ChildEnd> WaitFor(pid_t child, double limit_seconds) {
  const double deadline = MonotonicSeconds() + limit_seconds;
  useconds_t pause = 200;
  absl::optional<ChildEnd> end;
  while (!(end = Reap(child, WNOHANG)).has_value() &&
         MonotonicSeconds() < deadline) {
    usleep(pause);
    pause = std::min<useconds_t>(2 * pause, 10'000);
  }
  return end;
}

pid_t Fork() {
  std::cout.flush();
  fflush(nullptr);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) DieWith(parent);
  return child;
}

absl::StatusOr<pid_t> StartProgram(const Program& program) {
  const std::string& path =
      program.path.empty() ? program.words[0] : program.path;
  Start start = {path.c_str(),
                 {},
                 Environment(program.variables),
                 {program.input, program.output, program.errors},
                 getpid(),
                 nullptr};
  absl::optional<SandboxDoor> door;
  if (program.sandbox.has_value()) {
    door.emplace(*program.sandbox);
    CAPSTAN_RETURN_IF_ERROR(door->status());
    start.sandbox = &*door;
  }
  // One that is closed here could be a number of the pipe below.
  for (int fd = 0; fd < 3; ++fd) {
    int& from = start.standard[fd];
    if (from == fd && fcntl(fd, F_GETFD) < 0) from = Program::kNull;
  }
  for (const std::string& word : program.words) {
    start.words.push_back(const_cast<char*>(word.c_str()));
  }
  start.words.push_back(nullptr);
  Pipe failure;
  if (!failure.ok()) return absl::ErrnoToStatus(errno, path);
  const pid_t child = ForkAndBecome(program, start, failure.write_end());
  if (child < 0) return absl::ErrnoToStatus(errno, path);
  failure.CloseWrite();
  // The program runs, or its errno is there. A child that another thread forked
  // meanwhile may still hold the other end.
  fcntl(failure.read_end(), F_SETFL, O_NONBLOCK);
  int error = 0;
  ssize_t size = -1;
  do {
    size = read(failure.read_end(), &error, sizeof(error));
  } while (size < 0 && errno == EINTR);
  if (size != sizeof(error)) return child;
  WaitFor(child);
  return absl::ErrnoToStatus(error, path);
}

absl::StatusOr<ChildEnd> RunProgram(const Program& program) {
  CAPSTAN_ASSIGN_OR_RETURN(const pid_t child, StartProgram(program));
  return WaitFor(child);
}

}  // namespace capstan
