// SPDX-License-Identifier: Apache-2.0
#include "base/confined_child.h"

#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/subprocess.h"

namespace capstan {
namespace {

// Before each message of the child.
struct Header {
  int32_t code = 0;  // absl::StatusCode; 0: a message, else an error's text
  uint64_t size = 0;
};

constexpr size_t kMostErrorBytes = 1 << 16;

bool SendAll(int fd, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
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

}  // namespace

bool ConfinedChild::Parent::Receive(void* bytes, size_t size) const {
  return ReceiveAll(fd_, bytes, size);
}

bool ConfinedChild::Parent::Send(
    const absl::StatusOr<absl::string_view>& message) const {
  const absl::string_view text =
      message.ok() ? *message
                   : message.status().message().substr(0, kMostErrorBytes);
  Header header;
  header.code = static_cast<int32_t>(message.status().code());
  header.size = text.size();
  return SendAll(fd_,
                 {reinterpret_cast<const char*>(&header), sizeof(header)}) &&
         SendAll(fd_, text);
}

absl::StatusOr<std::unique_ptr<ConfinedChild>> ConfinedChild::Start(
    const ChildLimits& limits,
    const std::function<void(const Parent&)>& serve) {
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
    const Parent parent(ends[1]);
    try {
      serve(parent);
    } catch (...) {
      parent.Send(CurrentExceptionToStatus());
    }
    _exit(0);
  }
  close(ends[1]);
  return absl::WrapUnique(new ConfinedChild(pid, ends[0]));
}

ConfinedChild::~ConfinedChild() {
  close(fd_);
  if (ended()) return;
  kill(pid_, SIGKILL);
  WaitFor(pid_);
}

absl::Status ConfinedChild::Send(absl::string_view bytes) {
  return SendAll(fd_, bytes) ? absl::OkStatus() : Death();
}

absl::StatusOr<std::string> ConfinedChild::Receive(uint64_t most) {
  Header header;
  if (!ReceiveAll(fd_, &header, sizeof(header))) return Death();
  // Whatever the child has read may speak for it.
  const auto code = static_cast<absl::StatusCode>(header.code);
  const bool is_error = code != absl::StatusCode::kOk;
  if (header.size > (is_error ? kMostErrorBytes : most)) {
    Death().IgnoreError();
    return absl::InternalError("sends more than it may");
  }
  std::string text(header.size, '\0');
  if (!ReceiveAll(fd_, &text[0], text.size())) return Death();
  if (is_error) return absl::Status(code, text);
  return text;
}

absl::Status ConfinedChild::Death() {
  if (ended()) return absl::InternalError("has ended");
  // It has closed its end, or won't be listened to.
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

}  // namespace capstan
