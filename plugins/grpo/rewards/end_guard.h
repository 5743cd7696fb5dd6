// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_GRPO_REWARDS_END_GUARD_H_
#define CAPSTAN_PLUGINS_GRPO_REWARDS_END_GUARD_H_

#include <sys/types.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/subprocess.h"

namespace capstan::grpo {

// Clears up behind this process, however it ends: a shell waits for that. It
// does nothing if it is killed first, as where all of a job's processes are.
class EndGuard {
 public:
  // Once the process has ended, the shell runs `script`, in which $0 is
  // `argument`. It has a process group of its own, which a terminal's signals
  // don't reach.
  static absl::StatusOr<std::unique_ptr<EndGuard>> Start(
      const std::string& script, const std::string& argument);
  // There is nothing left to clear up: ends the shell.
  ~EndGuard();
  EndGuard(const EndGuard&) = delete;
  EndGuard& operator=(const EndGuard&) = delete;

 private:
  EndGuard() = default;

  Pipe held_;  // the shell reads its end
  pid_t shell_ = -1;
};

}  // namespace capstan::grpo

#endif  // CAPSTAN_PLUGINS_GRPO_REWARDS_END_GUARD_H_
