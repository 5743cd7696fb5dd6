// SPDX-License-Identifier: Apache-2.0
#include "datasets/chat/data_paths.h"

#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/error_code.h"
#include "base/files.h"
#include "base/status.h"
#include "text/rows/rows.h"

namespace capstan::chat {
namespace {

namespace fs = std::filesystem;

// Each is mapped.
constexpr size_t kMostFiles = 10000;

bool IsDataFile(const fs::path& path) {
  const std::string name = absl::AsciiStrToLower(path.filename().string());
  // What Hugging Face's library writes beside the data.
  return HasRowsName(name) && !absl::StartsWith(name, "dataset_info") &&
         !absl::StartsWith(name, "state.json");
}

absl::StatusOr<std::vector<std::string>> Matches(const std::string& pattern) {
  glob_t found = {};
  const int error = glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found);
  std::vector<std::string> files;
  for (size_t i = 0; i < found.gl_pathc; ++i) {
    if (!IsFolder(found.gl_pathv[i])) files.emplace_back(found.gl_pathv[i]);
  }
  globfree(&found);
  if (error != 0 && error != GLOB_NOMATCH) {
    return absl::ResourceExhaustedError(
        absl::StrCat(pattern, ": its folders can't be read"));
  }
  if (files.empty()) {
    return WithCode(
        absl::NotFoundError(absl::StrCat(pattern, " matches no file")),
        "data/file");
  }
  return files;
}

// Below `folder`, one of the names begins with "train".
bool IsForTraining(const fs::path& file, const fs::path& folder) {
  for (const fs::path& part : file.lexically_relative(folder)) {
    if (absl::StartsWith(absl::AsciiStrToLower(part.string()), "train")) {
      return true;
    }
  }
  return false;
}

absl::StatusOr<std::vector<std::string>> Below(const std::string& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  fs::recursive_directory_iterator at(folder, error);
  for (; !error && at != fs::recursive_directory_iterator();
       at.increment(error)) {
    const fs::path path = at->path();
    if (absl::StartsWith(path.filename().string(), ".")) {
      at.disable_recursion_pending();
      continue;
    }
    std::error_code ignored;
    if (fs::is_regular_file(path, ignored) && IsDataFile(path)) {
      files.push_back(path);
    }
    if (files.size() > kMostFiles) break;
  }
  if (error) {
    return WithCode(absl::NotFoundError(absl::StrCat(
                        folder, " can't be read: ", error.message())),
                    "data/file");
  }
  if (files.empty()) {
    return WithCode(
        absl::NotFoundError(absl::StrCat(
            folder,
            " is a folder without data files (.jsonl, .json, .parquet, "
            ".csv, .tsv)")),
        "data/file");
  }
  const auto others = std::stable_partition(
      files.begin(), files.end(),
      [&](const fs::path& file) { return IsForTraining(file, folder); });
  if (others != files.begin()) files.erase(others, files.end());
  std::set<std::string> folders;
  for (const fs::path& file : files)
    folders.insert(file.parent_path().string());
  if (folders.size() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        folder, " has data in several folders: name one, or a pattern: ",
        absl::StrJoin(folders, ", ")));
  }
  std::vector<std::string> paths;
  for (const fs::path& file : files) paths.push_back(file.string());
  return paths;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> FilesOf(const std::string& path) {
  const bool pattern = path.find_first_of("*?[") != std::string::npos;
  std::vector<std::string> files = {path};
  if (IsFolder(path)) {
    CAPSTAN_ASSIGN_OR_RETURN(files, Below(path));
  } else if (pattern && !PathExists(path)) {
    CAPSTAN_ASSIGN_OR_RETURN(files, Matches(path));
  }
  if (files.size() > kMostFiles) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " stands for more than ", kMostFiles, " files"));
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace capstan::chat
