// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_GRPO_REWARDS_SANDBOX_WATCH_H_
#define CAPSTAN_PLUGINS_GRPO_REWARDS_SANDBOX_WATCH_H_

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "base/subprocess.h"

namespace capstan::grpo {

// What a program in a sandbox (sandbox.h) may take of what no limit of the
// kernel's bounds for one process. It is looked at again and again, so that a
// program may take more for some hundredths of a second. Not counted are files
// that it has removed and holds open: Sandbox::files of Sandbox::file_bytes.
struct WatchedLimits {
  double seconds = 60;                       // until it has ended
  int64_t folder_bytes = int64_t{64} << 20;  // of all files in its folder
  int64_t folder_files = 1024;               // folders among them
  int64_t threads = 256;
};

// Waits for the child, whose sandbox has this folder, and kills it once it
// takes more.
ChildEnd WatchSandbox(pid_t child, const std::string& folder,
                      const WatchedLimits& limits);

}  // namespace capstan::grpo

#endif  // CAPSTAN_PLUGINS_GRPO_REWARDS_SANDBOX_WATCH_H_
