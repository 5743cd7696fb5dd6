// SPDX-License-Identifier: Apache-2.0
#include "plugins/grpo/rewards/swept_folder.h"

#include <unistd.h>

#include <cerrno>

#include "absl/memory/memory.h"
#include "base/status.h"

namespace capstan::grpo {
namespace {

// It isn't what stops a run that ends it. A program that dies with this process
// may still write for a moment.
constexpr char kSweep[] = R"(trap '' HUP INT QUIT TERM
read -r line
for again in 1 2 3; do
  rm -rf -- "$0" && exit
  sleep 1
done)";

}  // namespace

absl::StatusOr<std::unique_ptr<SweptFolder>> SweptFolder::Create() {
  auto swept = absl::WrapUnique(new SweptFolder);
  CAPSTAN_RETURN_IF_ERROR(swept->folder_.status());
  if (!swept->lives_.ok()) {
    return absl::ErrnoToStatus(errno, "no pipe to a shell");
  }
  ::capstan::Program shell;
  shell.words = {"/bin/sh", "-c", kSweep, swept->path()};
  shell.input = swept->lives_.read_end();
  shell.output = shell.errors = ::capstan::Program::kNull;
  shell.own_group = true;
  CAPSTAN_ASSIGN_OR_RETURN(swept->shell_, StartProgram(shell));
  return swept;
}

SweptFolder::~SweptFolder() {
  if (shell_ < 0) return;
  const ssize_t written = write(lives_.write_end(), "\n", 1);
  (void)written;
  WaitFor(shell_);
}

}  // namespace capstan::grpo
