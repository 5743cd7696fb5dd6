// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <system_error>

#include "base/files.h"
#include "base/status.h"
#include "host/config/load_config.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr char kLatest[] = "latest";

// The run's folder that `file` refers to; "" if it refers to none.
fs::path RunOf(const fs::path& file) {
  std::error_code error;
  if (file.filename() != kLatest) return "";
  if (!fs::is_regular_file(file, error)) {
    // A run whose config names its folder is alone in it.
    const fs::path folder = file.parent_path();
    return !fs::exists(file, error) &&
                   fs::is_regular_file(folder / "config.pbtxt", error)
               ? folder
               : "";
  }
  std::ifstream text(file);
  std::string name;
  std::getline(text, name);
  // Only a plain name, next to the file.
  if (name.empty() || name == "." || name == ".." ||
      fs::path(name).filename() != name) {
    return "";
  }
  const fs::path run = file.parent_path() / name;
  return fs::is_directory(run, error) ? run : "";
}

}  // namespace

absl::Status SetLatestRun(const std::string& runs, const std::string& name) {
  // A hidden name per run: others may start in the same second.
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::unique_ptr<HiddenFile> file,
      HiddenFile::Create((fs::path(runs) / kLatest).string(), name));
  CAPSTAN_RETURN_IF_ERROR(file->Write(name + "\n"));
  return file->Close();
}

std::string FollowLatestRun(const std::string& path) {
  fs::path followed;
  bool any = false;
  for (const fs::path& part : fs::path(path)) {
    followed /= part;
    const fs::path run = RunOf(followed);
    if (run.empty()) continue;
    followed = run;
    any = true;
  }
  return any ? followed.string() : path;
}

}  // namespace capstan
