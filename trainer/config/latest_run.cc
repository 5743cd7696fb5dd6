// SPDX-License-Identifier: Apache-2.0
#include "trainer/config/latest_run.h"

#include <filesystem>
#include <fstream>
#include <memory>
#include <system_error>

#include "base/files.h"
#include "base/status.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr char kLatest[] = "latest";

// The folder that `file` refers to; "" if it isn't such a file.
fs::path RunOf(const fs::path& file) {
  std::error_code error;
  if (file.filename() != kLatest || !fs::is_regular_file(file, error)) {
    return "";
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
