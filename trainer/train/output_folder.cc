// SPDX-License-Identifier: Apache-2.0
#include "trainer/train/output_folder.h"

#include <filesystem>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "plugins/sdk/status.h"
#include "trainer/checkpoint/checkpoint.h"

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

// Whether a run has written there.
bool HoldsRun(const fs::path& folder) {
  for (const char* name :
       {"metrics.jsonl", "checkpoints", "final", "summary.json"}) {
    if (fs::exists(folder / name)) return true;
  }
  return false;
}

// runs/NAME/TIME, with a number behind it when two runs start in a second.
absl::StatusOr<std::string> NewRunFolder(const fs::path& runs) {
  CAPSTAN_RETURN_IF_ERROR(MakeFolder(runs));
  const std::string time =
      absl::FormatTime("%Y-%m-%d_%H-%M-%S", absl::Now(), absl::LocalTimeZone());
  for (int i = 1;; ++i) {
    const fs::path folder = runs / (i == 1 ? time : absl::StrCat(time, "_", i));
    std::error_code error;
    // false without an error: another run has it.
    if (fs::create_directory(folder, error)) {
      const fs::path link = runs / "latest";
      const fs::path fresh =
          runs / absl::StrCat(".latest.", folder.filename().string());
      fs::create_directory_symlink(folder.filename(), fresh, error);
      fs::rename(fresh, link, error);
      return folder.string();
    }
    if (error) {
      return absl::PermissionDeniedError(
          absl::StrCat(folder.string(), " can't be made: ", error.message()));
    }
  }
}

}  // namespace

absl::StatusOr<std::string> PrepareOutputFolder(
    const RunConfig& config, const std::string& workspace_folder) {
  const bool resume = config.train().resume() == Train::AUTO;
  if (config.output_dir().empty()) {
    const fs::path base = workspace_folder.empty() ? fs::current_path()
                                                   : fs::path(workspace_folder);
    const fs::path runs = base / "runs" / config.name();
    const fs::path latest = runs / "latest";
    if (resume && !NewestCheckpoint(latest.string()).empty() &&
        !fs::exists(latest / "final")) {
      return fs::canonical(latest).string();
    }
    return NewRunFolder(runs);
  }
  const fs::path folder = config.output_dir();
  if (fs::exists(folder) && !fs::is_directory(folder)) {
    return absl::AlreadyExistsError(
        absl::StrCat("output_dir: ", folder.string(), " is not a folder"));
  }
  if (HoldsRun(folder) && !resume) {
    return absl::AlreadyExistsError(absl::StrCat(
        "output_dir: ", folder.string(),
        " already holds a run; set train { resume: AUTO } to continue it, or "
        "name another folder"));
  }
  CAPSTAN_RETURN_IF_ERROR(MakeFolder(folder));
  return folder.string();
}

}  // namespace capstan
