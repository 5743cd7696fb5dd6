// SPDX-License-Identifier: Apache-2.0
#include "datasets/darkroom/reader_child.h"

#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"

namespace capstan::darkroom {
namespace {

void Limit(int what, int64_t most, int64_t beyond = 0) {
  const rlimit limit = {static_cast<rlim_t>(most),
                        static_cast<rlim_t>(most + beyond)};
  // One that is lower already stays.
  setrlimit(static_cast<__rlimit_resource>(what), &limit);
}

int64_t AddressSpace() {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

// What the parent has open isn't the child's to keep: others wait for its end.
void CloseOthers(int fd) {
  DIR* const folder = opendir("/proc/self/fd");
  if (folder == nullptr) return;
  while (const dirent* entry = readdir(folder)) {
    const int number = atoi(entry->d_name);
    if (number > STDERR_FILENO && number != fd && number != dirfd(folder)) {
      close(number);
    }
  }
  closedir(folder);
}

void Confine(int fd, const ChildLimits& limits) {
  // A crash is this process's end, and what stops the run isn't for it.
  for (const int signal : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGXCPU}) {
    ::signal(signal, SIG_DFL);
  }
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGTSTP}) {
    ::signal(signal, SIG_IGN);
  }
  CloseOthers(fd);
  Limit(RLIMIT_CORE, 0);
  // At the second limit the signal is SIGKILL, which says nothing.
  Limit(RLIMIT_CPU, std::max<int64_t>(1, limits.cpu_seconds), 5);
  const int64_t used = AddressSpace();
  if (used > 0) Limit(RLIMIT_AS, used + limits.bytes);
}

}  // namespace

bool SendAll(int fd, const void* bytes, size_t size) {
  const char* at = static_cast<const char*>(bytes);
  while (size > 0) {
    const ssize_t sent = send(fd, at, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += sent;
    size -= static_cast<size_t>(sent);
  }
  return true;
}

bool ReceiveAll(int fd, void* bytes, size_t size) {
  char* at = static_cast<char*>(bytes);
  while (size > 0) {
    const ssize_t got = recv(fd, at, size, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    size -= static_cast<size_t>(got);
  }
  return true;
}

absl::StatusOr<std::unique_ptr<ReaderChild>> ReaderChild::Start(
    const ChildLimits& limits, const std::function<void(int)>& serve) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::ErrnoToStatus(errno, "no socket for a process that reads");
  }
  const pid_t pid = fork();
  if (pid < 0) {
    const int error = errno;
    close(ends[0]);
    close(ends[1]);
    return absl::ErrnoToStatus(error, "no process that reads");
  }
  if (pid == 0) {
    Confine(ends[1], limits);
    serve(ends[1]);
    _exit(0);
  }
  close(ends[1]);
  return absl::WrapUnique(new ReaderChild(pid, ends[0]));
}

ReaderChild::~ReaderChild() {
  close(fd_);
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

absl::Status ReaderChild::Send(const void* bytes, size_t size) {
  return SendAll(fd_, bytes, size) ? absl::OkStatus() : Death();
}

absl::Status ReaderChild::Receive(void* bytes, size_t size) {
  return ReceiveAll(fd_, bytes, size) ? absl::OkStatus() : Death();
}

absl::Status ReaderChild::Death() {
  if (pid_ < 0) return absl::InternalError("has ended");
  // It has closed its end, and isn't waited for.
  kill(pid_, SIGKILL);
  int status = 0;
  pid_t done;
  while ((done = waitpid(pid_, &status, 0)) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  if (done < 0) return absl::InternalError("has ended");
  if (WIFEXITED(status)) {
    return absl::InternalError(
        absl::StrCat("has ended with exit code ", WEXITSTATUS(status)));
  }
  if (WTERMSIG(status) == SIGXCPU) {
    return absl::ResourceExhaustedError("takes too long");
  }
  return absl::InternalError(
      absl::StrCat("crashed (", strsignal(WTERMSIG(status)), ")"));
}

}  // namespace capstan::darkroom
