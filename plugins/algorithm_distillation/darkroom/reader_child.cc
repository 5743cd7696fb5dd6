// SPDX-License-Identifier: Apache-2.0
#include "plugins/algorithm_distillation/darkroom/reader_child.h"

#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "base/subprocess.h"

namespace capstan::darkroom {
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
    ConfineChild(limits, {ends[1]});
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
  WaitFor(pid_);
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
  const ChildEnd end = WaitFor(pid_);
  pid_ = -1;
  if (end.signal == SIGXCPU) {
    return absl::ResourceExhaustedError("takes too long");
  }
  if (end.signal > 0) {
    return absl::InternalError(
        absl::StrCat("crashed (", strsignal(end.signal), ")"));
  }
  return absl::InternalError(
      absl::StrCat("has ended", end.known() ? " with " + end.Text() : ""));
}

}  // namespace capstan::darkroom
