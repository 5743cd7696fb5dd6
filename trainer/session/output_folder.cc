// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/output_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <string>
#include <system_error>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/config/latest_run.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

absl::Status MakeFolder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      "output_dir: ", folder.string(), " can't be made: ", error.message()));
}

// Whether a run has written to the folder.
bool HoldsRun(const fs::path& folder) {
  for (const char* name :
       {"metrics.jsonl", "checkpoints", "final", "summary.json"}) {
    if (fs::exists(folder / name)) return true;
  }
  return false;
}

// Who has the lock, for a run that finds the folder in use.
std::string Holder(const std::string& placed_by) {
  char host[256] = {};
  if (gethostname(host, sizeof(host) - 1) != 0) host[0] = '\0';
  return absl::StrCat("host ", host, ", process ", getpid(), ", since ",
                      absl::FormatTime("%Y-%m-%d %H:%M:%S %Ez", absl::Now(),
                                       absl::LocalTimeZone()),
                      placed_by.empty() ? "" : absl::StrCat(", ", placed_by));
}

// What Holder said in the file; " (..)", or "" if it isn't known.
std::string ReadHolder(int fd) {
  char text[512];
  const ssize_t n = pread(fd, text, sizeof(text), 0);
  if (n <= 0) return "";
  const absl::string_view all(text, static_cast<size_t>(n));
  return absl::StrCat(
      " (", absl::Utf8SafeCEscape(all.substr(0, all.find('\n'))), ")");
}

// Only what others are told: that it can't be written is no reason to stop.
void WriteHolder(int fd, const std::string& placed_by) {
  const std::string text = absl::StrCat(Holder(placed_by), "\n");
  if (ftruncate(fd, 0) != 0) return;
  if (pwrite(fd, text.data(), text.size(), 0) < 0) return;
}

// Locks the folder for this process and its forks, as concurrent runs would
// overwrite each other's files. Released when the last of them exits.
absl::Status Lock(const fs::path& folder, const std::string& placed_by) {
  const std::string path = (folder / ".lock").string();
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) {
    return absl::PermissionDeniedError(absl::StrCat(
        "output_dir: ", path, " can't be written: ", std::strerror(errno)));
  }
  // A run killed a moment ago may still be exiting.
  constexpr int kTries = 20;
  for (int i = 0; i < kTries; ++i) {
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
      WriteHolder(fd, placed_by);
      return absl::OkStatus();
    }
    if (errno != EWOULDBLOCK && errno != EINTR) {
      std::cerr << absl::StrCat("WARNING: output_dir: ", folder.string(),
                                " can't be locked: ", std::strerror(errno),
                                "; make sure that no other run writes there\n");
      close(fd);
      return absl::OkStatus();
    }
    absl::SleepFor(absl::Milliseconds(100));
  }
  const std::string holder = ReadHolder(fd);
  close(fd);
  return absl::FailedPreconditionError(
      absl::StrCat("output_dir: ", folder.string(),
                   " is in use by a run that is still going", holder,
                   ": wait for it, stop it, or name another folder"));
}

// Creates runs/NAME/TIME, with a numeric suffix if two runs start in one
// second.
absl::StatusOr<std::string> NewRunFolder(const fs::path& runs) {
  CAPSTAN_RETURN_IF_ERROR(MakeFolder(runs));
  const std::string time =
      absl::FormatTime("%Y-%m-%d_%H-%M-%S", absl::Now(), absl::LocalTimeZone());
  for (int i = 1;; ++i) {
    const fs::path folder = runs / (i == 1 ? time : absl::StrCat(time, "_", i));
    std::error_code error;
    // false without an error: it belongs to another run.
    if (fs::create_directory(folder, error)) {
      // Not essential to the run.
      const absl::Status latest =
          SetLatestRun(runs.string(), folder.filename().string());
      if (!latest.ok()) std::cerr << latest.message() << "\n";
      return folder.string();
    }
    if (error) {
      return absl::PermissionDeniedError(
          absl::StrCat(folder.string(), " can't be made: ", error.message()));
    }
  }
}

// Parent of the run folders for configs without output_dir.
fs::path RunsFolder(const RunConfig& config,
                    const std::string& workspace_folder) {
  const fs::path base = workspace_folder.empty() ? fs::current_path()
                                                 : fs::path(workspace_folder);
  return base / "runs" / config.name();
}

}  // namespace

std::string CheckpointToResume(const RunConfig& config,
                               const std::string& workspace_folder) {
  if (config.train().resume() != Train::AUTO) return "";
  if (!config.output_dir().empty()) {
    return NewestCheckpoint(config.output_dir());
  }
  const fs::path latest = FollowLatestRun(
      (RunsFolder(config, workspace_folder) / "latest").string());
  // Completed runs aren't resumed.
  return fs::exists(latest / "final") ? "" : NewestCheckpoint(latest.string());
}

absl::StatusOr<std::string> PrepareOutputFolder(
    const RunConfig& config, const std::string& workspace_folder,
    const std::string& placed_by) {
  const bool resume = config.train().resume() == Train::AUTO;
  if (config.output_dir().empty()) {
    const fs::path runs = RunsFolder(config, workspace_folder);
    if (!CheckpointToResume(config, workspace_folder).empty()) {
      const fs::path folder =
          fs::canonical(FollowLatestRun((runs / "latest").string()));
      CAPSTAN_RETURN_IF_ERROR(Lock(folder, placed_by));
      return folder.string();
    }
    CAPSTAN_ASSIGN_OR_RETURN(const std::string folder, NewRunFolder(runs));
    CAPSTAN_RETURN_IF_ERROR(Lock(folder, placed_by));
    return folder;
  }
  const fs::path folder = config.output_dir();
  if (fs::exists(folder) && !fs::is_directory(folder)) {
    return absl::AlreadyExistsError(
        absl::StrCat("output_dir: ", folder.string(), " is not a folder"));
  }
  if (HoldsRun(folder) && !resume) {
    return absl::AlreadyExistsError(absl::StrCat(
        "output_dir: ", folder.string(),
        " already holds a run; continue it with train { resume: AUTO } "
        "(--set train.resume=AUTO), or name another folder"));
  }
  CAPSTAN_RETURN_IF_ERROR(MakeFolder(folder));
  CAPSTAN_RETURN_IF_ERROR(Lock(folder, placed_by));
  return folder.string();
}

}  // namespace capstan
