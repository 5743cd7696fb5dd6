// SPDX-License-Identifier: Apache-2.0
#include "plugins/grpo/rewards/line_program.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/status.h"
#include "plugins/grpo/rewards/row_field.h"

namespace capstan::grpo {
namespace {

// Between the end of a program's output and its own.
constexpr double kEndSeconds = 2.0;
// How long a line that nobody asked for is waited for behind those that
// somebody did: it would be told of the next question's answers otherwise.
constexpr int kMoreMilliseconds = 5;

}  // namespace

absl::StatusOr<std::unique_ptr<LineProgram>> LineProgram::Start(
    ::capstan::Program program) {
  std::unique_ptr<LineProgram> started(new LineProgram);
  int ends[2];
  Pipe output;
  if (!output.ok() ||
      socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::ErrnoToStatus(errno, program.words[0]);
  }
  started->to_ = ends[0];
  program.input = ends[1];
  program.output = output.write_end();
  program.own_group = true;
  program.dies_with_parent = true;
  const absl::StatusOr<pid_t> child = StartProgram(program);
  close(ends[1]);
  CAPSTAN_RETURN_IF_ERROR(child.status());
  started->program_ = *child;
  started->from_ = output.ReleaseRead();
  for (const int fd : {started->to_, started->from_}) {
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  }
  CAPSTAN_ASSIGN_OR_RETURN(
      started->guard_,
      EndGuard::Start("kill -s KILL -- -$0", absl::StrCat(*child)));
  return started;
}

LineProgram::~LineProgram() {
  if (program_ > 0) {
    // The group may outlive its leader, which keeps its number until it is
    // waited for.
    kill(-program_, SIGKILL);
    WaitFor(program_);
  }
  if (to_ >= 0) close(to_);
  if (from_ >= 0) close(from_);
}

absl::Status LineProgram::Ask(absl::string_view text, size_t count,
                              double limit_seconds,
                              std::vector<std::string>* lines) {
  const double deadline = MonotonicSeconds() + limit_seconds;
  const size_t wanted = lines->size() + count;
  bool open = Read();  // what it says unasked
  if (!said_.empty()) return TakeLines(0, lines);
  while (lines->size() < wanted) {
    if (!open) return Ended("output");
    const double left = deadline - MonotonicSeconds();
    if (left <= 0) {
      return absl::DeadlineExceededError(
          absl::StrCat("said ", count - (wanted - lines->size()), " of ", count,
                       " lines within ", limit_seconds, " s"));
    }
    pollfd fds[] = {{from_, POLLIN, 0}, {to_, POLLOUT, 0}};
    poll(fds, text.empty() ? 1 : 2,
         static_cast<int>(std::min(1000.0 * left + 1.0, 1e6)));
    if (!text.empty() && fds[1].revents != 0) {
      const ssize_t sent = send(to_, text.data(), text.size(), MSG_NOSIGNAL);
      if (sent > 0) text.remove_prefix(static_cast<size_t>(sent));
      // It may say why, and what it has to, before it ends.
      if (sent < 0 && errno != EAGAIN && errno != EINTR) {
        Read();
        CAPSTAN_RETURN_IF_ERROR(TakeLines(wanted, lines));
        return Ended("input");
      }
    }
    if (fds[0].revents != 0) open = Read();
    CAPSTAN_RETURN_IF_ERROR(TakeLines(wanted, lines));
  }
  pollfd more = {from_, POLLIN, 0};
  if (poll(&more, 1, kMoreMilliseconds) > 0) Read();
  return TakeLines(wanted, lines);
}

bool LineProgram::Read() {
  char buffer[4096];
  // One that never pauses mustn't keep this from looking at its lines.
  for (size_t most = 2 * kMostLineBytes; most > 0;) {
    const ssize_t size = read(from_, buffer, std::min(sizeof(buffer), most));
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno == EAGAIN) return true;
    if (size <= 0) return false;
    said_.append(buffer, static_cast<size_t>(size));
    most -= static_cast<size_t>(size);
  }
  return true;
}

absl::Status LineProgram::TakeLines(size_t wanted,
                                    std::vector<std::string>* lines) {
  size_t at = 0;
  for (size_t end; lines->size() < wanted &&
                   (end = said_.find('\n', at)) != std::string::npos;
       at = end + 1) {
    const absl::string_view line =
        absl::string_view(said_).substr(at, end - at);
    lines->emplace_back(absl::StripSuffix(line, "\r"));
  }
  said_.erase(0, at);
  const bool unasked = lines->size() >= wanted;
  if (said_.size() <= (unasked ? 0 : kMostLineBytes)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "said ", Quoted(absl::string_view(said_).substr(0, said_.find('\n'))),
      unasked ? ", which nobody asked for"
              : ", a line of more than 64 KiB or without an end",
      "; print one line for each answer, and anything else to standard "
      "error"));
}

absl::Status LineProgram::Ended(absl::string_view closed) {
  const absl::optional<ChildEnd> end = WaitFor(program_, kEndSeconds);
  if (!end.has_value()) {
    return absl::UnavailableError(
        absl::StrCat("closed its standard ", closed, " and runs on"));
  }
  kill(-program_, SIGKILL);  // what it has left behind
  program_ = -1;
  return absl::UnavailableError(absl::StrCat("ended with ", end->Text()));
}

}  // namespace capstan::grpo
