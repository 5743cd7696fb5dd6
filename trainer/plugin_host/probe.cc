// SPDX-License-Identifier: Apache-2.0
#include "trainer/plugin_host/probe.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace capstan {
namespace {

constexpr size_t kMostOutput = 64 << 10;
constexpr size_t kMostQuoted = 300;
constexpr std::chrono::seconds kSlow{2};

struct Pipe {
  Pipe() {
    if (pipe2(fds, O_CLOEXEC) != 0) fds[0] = fds[1] = -1;
  }
  ~Pipe() {
    Close(0);
    Close(1);
  }
  void Close(int end) {
    if (fds[end] >= 0) close(fds[end]);
    fds[end] = -1;
  }
  int fds[2];
};

// exit() runs this before all other handlers, which are the parent's.
void LeaveAtOnce(int status, void*) {
  std::fflush(nullptr);
  _exit(status);
}

[[noreturn]] void RunChild(const std::function<void()>& call, pid_t parent,
                           const Pipe& returned, const Pipe& printed) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(0);
  const rlimit no_core = {0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  dup2(printed.fds[1], STDOUT_FILENO);
  dup2(printed.fds[1], STDERR_FILENO);
  on_exit(&LeaveAtOnce, nullptr);
  call();
  const char done = 1;
  while (write(returned.fds[1], &done, 1) < 0 && errno == EINTR) {
  }
  _exit(0);
}

// Reads both pipes until the child has returned, exited, or timed out. End of
// file on `returned` means it exited, unless a child of its own holds the pipe
// open.
enum class End { kReturned, kGone, kLate };
End Watch(Pipe& returned, Pipe& printed, double seconds, std::string* output,
          std::function<void()> slow) {
  using Clock = std::chrono::steady_clock;
  using std::chrono::milliseconds;
  const Clock::time_point start = Clock::now();
  const auto deadline = start + std::chrono::duration_cast<Clock::duration>(
                                    std::chrono::duration<double>(seconds));
  pollfd fds[2] = {{returned.fds[0], POLLIN, 0}, {printed.fds[0], POLLIN, 0}};
  while (true) {
    const Clock::time_point now = Clock::now();
    if (now >= deadline) return End::kLate;
    if (slow != nullptr && now >= start + kSlow) {
      std::exchange(slow, nullptr)();
    }
    const Clock::time_point next =
        slow == nullptr ? deadline : std::min(deadline, start + kSlow);
    const auto left = std::chrono::duration_cast<milliseconds>(next - now);
    const int ready = poll(fds, 2, static_cast<int>(left.count()) + 1);
    if (ready < 0 && errno != EINTR) return End::kLate;
    if (ready <= 0) continue;
    char buffer[4096];
    // Read output first, so that none is lost.
    if (fds[1].revents != 0) {
      const ssize_t n = read(fds[1].fd, buffer, sizeof(buffer));
      if (n == 0) fds[1].fd = -1;
      if (n > 0 && output->size() < kMostOutput) output->append(buffer, n);
      continue;
    }
    if (fds[0].revents != 0) {
      const ssize_t n = read(fds[0].fd, buffer, 1);
      if (n == 0) return End::kGone;
      if (n == 1) return End::kReturned;
    }
  }
}

// "; it printed: .." with the tail of the output on one line, or "".
std::string LastWords(absl::string_view output) {
  output = absl::StripAsciiWhitespace(output);
  if (output.empty()) return "";
  const bool cut = output.size() > kMostQuoted;
  if (cut) output.remove_prefix(output.size() - kMostQuoted);
  std::string text(output);
  std::replace_if(
      text.begin(), text.end(),
      [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
  return absl::StrCat("; it printed: ", cut ? ".." : "", text);
}

}  // namespace

absl::Status Probe(const std::function<void()>& call, double limit_seconds,
                   std::string* output, const std::function<void()>& slow) {
  std::string text;
  if (output == nullptr) output = &text;
  Pipe returned, printed;
  if (returned.fds[0] < 0 || printed.fds[0] < 0) return absl::OkStatus();
  // Otherwise the child would print what is buffered, too.
  std::cout.flush();
  std::fflush(nullptr);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) return absl::OkStatus();
  if (child == 0) RunChild(call, parent, returned, printed);
  returned.Close(1);
  printed.Close(1);
  const End end = Watch(returned, printed, limit_seconds, output, slow);
  if (end == End::kLate) kill(child, SIGKILL);
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno == EINTR) continue;
    // ECHILD: whoever started the trainer ignores SIGCHLD.
    if (end != End::kGone) break;
    return absl::InternalError(
        absl::StrCat("ended the process", LastWords(*output)));
  }
  if (end == End::kReturned) return absl::OkStatus();
  if (end == End::kLate) {
    return absl::DeadlineExceededError(
        absl::StrCat("did not end within ", limit_seconds, " s"));
  }
  if (WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    return absl::InternalError(absl::StrCat("crashed: signal ", signal, " (",
                                            strsignal(signal), ")",
                                            LastWords(*output)));
  }
  return absl::InternalError(absl::StrCat("ended the process, with exit code ",
                                          WEXITSTATUS(status),
                                          LastWords(*output)));
}

}  // namespace capstan
