// SPDX-License-Identifier: Apache-2.0
#include "trainer/config/latest_run.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr char kLatest[] = "latest";

// The folder that `file` stands for, "" if it is something else.
fs::path RunOf(const fs::path& file) {
  std::error_code error;
  if (file.filename() != kLatest || !fs::is_regular_file(file, error)) {
    return "";
  }
  std::ifstream text(file);
  std::string name;
  std::getline(text, name);
  // A name alone: it lies beside the file.
  if (name.empty() || name == "." || name == ".." ||
      fs::path(name).filename() != name) {
    return "";
  }
  const fs::path run = file.parent_path() / name;
  return fs::is_directory(run, error) ? run : "";
}

}  // namespace

absl::Status SetLatestRun(const std::string& runs, const std::string& name) {
  const fs::path latest = fs::path(runs) / kLatest;
  const fs::path fresh = fs::path(runs) / absl::StrCat(".latest.", name);
  const auto failed = [&latest](const std::string& why) {
    return absl::PermissionDeniedError(
        absl::StrCat(latest.string(), " can't be written: ", why));
  };
  std::ofstream file(fresh);
  file << name << "\n";
  file.close();
  if (!file) return failed(std::strerror(errno));
  std::error_code error;
  fs::rename(fresh, latest, error);
  if (!error) return absl::OkStatus();
  std::error_code ignored;
  fs::remove(fresh, ignored);
  return failed(error.message());
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
