// SPDX-License-Identifier: Apache-2.0
#include "base/confine.h"

#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace capstan {
namespace {

void Limit(int what, int64_t most, int64_t beyond = 0) {
  const auto resource = static_cast<__rlimit_resource>(what);
  rlimit limit;
  if (getrlimit(resource, &limit) != 0) return;
  // One that is lower already stays.
  limit.rlim_cur = std::min(limit.rlim_cur, static_cast<rlim_t>(most));
  limit.rlim_max = std::min(limit.rlim_max, static_cast<rlim_t>(most + beyond));
  setrlimit(resource, &limit);
}

int64_t AddressSpace() {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

// What the parent has open isn't the child's to keep: others wait for its end.
void CloseOthers(absl::Span<const int> kept) {
  DIR* const folder = opendir("/proc/self/fd");
  if (folder == nullptr) return;
  while (const dirent* entry = readdir(folder)) {
    const int number = atoi(entry->d_name);
    if (number > STDERR_FILENO && number != dirfd(folder) &&
        std::find(kept.begin(), kept.end(), number) == kept.end()) {
      close(number);
    }
  }
  closedir(folder);
}

}  // namespace

void ConfineChild(const ChildLimits& limits, absl::Span<const int> kept) {
  // A crash is this process's end, and what stops the run isn't for it.
  for (const int signal : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGXCPU}) {
    ::signal(signal, SIG_DFL);
  }
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGTSTP}) {
    ::signal(signal, SIG_IGN);
  }
  CloseOthers(kept);
  Limit(RLIMIT_CORE, 0);
  // At the second limit the signal is SIGKILL, which says nothing.
  Limit(RLIMIT_CPU, std::max<int64_t>(1, limits.cpu_seconds), 5);
  const int64_t used = AddressSpace();
  if (used > 0) Limit(RLIMIT_AS, used + limits.bytes);
}

}  // namespace capstan
