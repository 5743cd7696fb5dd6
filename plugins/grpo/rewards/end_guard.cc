// SPDX-License-Identifier: Apache-2.0
#include "plugins/grpo/rewards/end_guard.h"

#include <signal.h>

#include <cerrno>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace capstan::grpo {

absl::StatusOr<std::unique_ptr<EndGuard>> EndGuard::Start(
    const std::string& script, const std::string& argument) {
  auto guard = absl::WrapUnique(new EndGuard);
  if (!guard->held_.ok()) {
    return absl::ErrnoToStatus(errno, "no pipe to a shell");
  }
  ::capstan::Program shell;
  // What stops a run is not its end.
  shell.words = {
      "/bin/sh", "-c",
      absl::StrCat("trap '' HUP INT QUIT TERM\nread -r line\n", script),
      argument};
  shell.input = guard->held_.read_end();
  shell.output = shell.errors = ::capstan::Program::kNull;
  shell.own_group = true;
  CAPSTAN_ASSIGN_OR_RETURN(guard->shell_, StartProgram(shell));
  guard->held_.CloseRead();
  return guard;
}

EndGuard::~EndGuard() {
  if (shell_ < 0) return;
  kill(shell_, SIGKILL);
  WaitFor(shell_);
}

}  // namespace capstan::grpo
