// SPDX-License-Identifier: Apache-2.0
#include "plugins/grpo/rewards/sandbox_watch.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/types/optional.h"
#include "base/clock.h"
#include "base/files.h"

namespace capstan::grpo {
namespace {

constexpr double kLookSeconds = 0.02;
// Folders within each other; each costs a descriptor here.
constexpr int kDeepest = 32;

struct Left {
  int64_t bytes;
  int64_t files;
};

// Takes what is below the folder `fd`, which this closes, from *left. False:
// there is more. What goes meanwhile doesn't count.
bool TakeFolder(int fd, int depth, Left* left) {
  DIR* const folder = fdopendir(fd);
  if (folder == nullptr) {
    close(fd);
    return true;
  }
  bool fits = true;
  while (const dirent* const entry = fits ? readdir(folder) : nullptr) {
    const absl::string_view name = entry->d_name;
    struct stat info;
    if (name == "." || name == ".." ||
        fstatat(fd, entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) {
      continue;
    }
    left->bytes -= info.st_size;
    --left->files;
    fits = left->bytes >= 0 && left->files >= 0;
    if (!fits || !S_ISDIR(info.st_mode)) continue;
    const int below = openat(fd, entry->d_name,
                             O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (below < 0) continue;
    if (depth < kDeepest) {
      fits = TakeFolder(below, depth + 1, left);
    } else {
      close(below);
      fits = false;
    }
  }
  closedir(folder);
  return fits;
}

bool FolderFits(const std::string& path, const WatchedLimits& limits) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  Left left = {limits.folder_bytes, limits.folder_files};
  return fd < 0 || TakeFolder(fd, 0, &left);
}

// 0 if it isn't known.
int64_t ThreadsOf(pid_t process) {
  const absl::StatusOr<std::string> status =
      ReadWholeFile(absl::StrCat("/proc/", process, "/status"));
  int64_t threads = 0;
  if (!status.ok()) return threads;
  for (absl::string_view line : absl::StrSplit(*status, '\n')) {
    if (!absl::ConsumePrefix(&line, "Threads:")) continue;
    return absl::SimpleAtoi(line, &threads) ? threads : 0;
  }
  return threads;
}

}  // namespace

ChildEnd WatchSandbox(pid_t child, const std::string& folder,
                      const WatchedLimits& limits) {
  const double deadline = MonotonicSeconds() + limits.seconds;
  do {
    const absl::optional<ChildEnd> end = WaitFor(child, kLookSeconds);
    if (end.has_value()) return *end;
  } while (MonotonicSeconds() < deadline &&
           ThreadsOf(child) <= limits.threads && FolderFits(folder, limits));
  kill(child, SIGKILL);
  return WaitFor(child);
}

}  // namespace capstan::grpo
