// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/checkpoint_folders.h"

#include <stdio.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/error_code.h"
#include "base/files.h"
#include "trainer/checkpoint/checkpoint.h"

// After LibTorch's headers, which define the same macros.
#include <glog/logging.h>

namespace capstan {
namespace {

std::string Root(const std::string& output_dir) {
  return output_dir + "/checkpoints";
}

std::vector<std::string> ListNames(const std::string& folder) {
  namespace fs = std::filesystem;
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  return names;
}

// The step in "step-NNNNNNNN", or -1.
int64_t StepOf(absl::string_view name) {
  int64_t step = -1;
  if (!absl::ConsumePrefix(&name, "step-") || name.size() < 8 ||
      name.find_first_not_of("0123456789") != absl::string_view::npos ||
      !absl::SimpleAtoi(name, &step)) {
    return -1;
  }
  return step;
}

// Whole checkpoints by step.
std::map<int64_t, std::string> WholeByStep(const std::string& output_dir) {
  std::map<int64_t, std::string> found;
  for (const StoredCheckpoint& stored : ListCheckpoints(output_dir)) {
    const std::string name = stored.path.substr(stored.path.rfind('/') + 1);
    if (!stored.whole) continue;
    if (absl::StartsWith(name, ".")) {
      found.emplace(stored.step, stored.path);
    } else {
      found[stored.step] = stored.path;
    }
  }
  return found;
}

void RemoveQuietly(const std::string& path) {
  const absl::Status status = RemoveTree(path);
  if (!status.ok()) {
    LOG(WARNING) << "cannot remove what an older checkpoint has left: "
                 << status.message();
  }
}

}  // namespace

std::string CheckpointFolder(const std::string& output_dir, int64_t step) {
  return absl::StrFormat("%s/step-%08d", Root(output_dir), step);
}

bool IsCheckpoint(const std::string& folder) {
  return PathExists(absl::StrCat(folder, "/manifest.json"));
}

std::vector<StoredCheckpoint> ListCheckpoints(const std::string& output_dir) {
  std::vector<StoredCheckpoint> found;
  for (const std::string& name : ListNames(Root(output_dir))) {
    absl::string_view plain = name;
    // What is being written or removed isn't whole, even with a manifest.
    bool may_be_whole = true;
    if (absl::ConsumePrefix(&plain, ".")) {
      plain = plain.substr(0, plain.rfind('.'));
      may_be_whole = absl::EndsWith(name, ".old");
    }
    const int64_t step = StepOf(plain);
    if (step < 0) continue;
    const std::string path = absl::StrCat(Root(output_dir), "/", name);
    found.push_back({step, path, may_be_whole && IsCheckpoint(path)});
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) {
    return a.step != b.step ? a.step < b.step : a.path < b.path;
  });
  return found;
}

std::vector<StoredCheckpoint> WholeCheckpoints(const std::string& output_dir) {
  std::vector<StoredCheckpoint> newest_first;
  for (const auto& [step, path] : WholeByStep(output_dir)) {
    newest_first.insert(newest_first.begin(), {step, path, true});
  }
  return newest_first;
}

std::string NewestCheckpoint(const std::string& output_dir) {
  const std::map<int64_t, std::string> found = WholeByStep(output_dir);
  return found.empty() ? "" : found.rbegin()->second;
}

void RemoveOldCheckpoints(const std::string& output_dir, int keep,
                          int64_t saved_step, int64_t best_step,
                          const std::set<int64_t>& damaged) {
  if (keep > 0) {
    std::map<int64_t, std::string> others = WholeByStep(output_dir);
    others.erase(saved_step);
    others.erase(best_step);
    for (const int64_t step : damaged) others.erase(step);
    for (; others.size() >= static_cast<size_t>(keep);
         others.erase(others.begin())) {
      // Rename first: a half-removed checkpoint must not look complete.
      const auto& [step, path] = *others.begin();
      const std::string trash =
          HiddenSibling(CheckpointFolder(output_dir, step), "trash");
      RemoveQuietly(trash);
      if (rename(path.c_str(), trash.c_str()) != 0) {
        PLOG(WARNING) << "cannot remove the old checkpoint of step " << step;
      }
    }
  }
  RemoveLeftovers(output_dir);
}

absl::Status CheckStepOfName(const std::string& folder, int64_t step) {
  const std::filesystem::path path(folder);
  const std::filesystem::path name =
      path.has_filename() ? path.filename() : path.parent_path().filename();
  const int64_t named = StepOf(name.string());
  if (named < 0 || named == step) return absl::OkStatus();
  return WithCode(absl::DataLossError(absl::StrFormat(
                      "%s holds step %d: give it its name back, step-%08d",
                      folder, step, step)),
                  "checkpoint/renamed");
}

void RemoveLeftovers(const std::string& output_dir) {
  std::set<std::string> whole;
  for (const auto& [step, path] : WholeByStep(output_dir)) whole.insert(path);
  std::vector<std::string> left;
  for (const std::string& name : ListNames(Root(output_dir))) {
    const std::string path = Root(output_dir) + "/" + name;
    if (absl::StartsWith(name, ".step-") && whole.count(path) == 0) {
      left.push_back(path);
    }
  }
  if (left.empty()) return;
  // A loss of power may undo a folder's renaming, and not what follows it.
  const absl::Status synced = SyncPath(Root(output_dir));
  if (!synced.ok()) {
    LOG(WARNING) << "leaves what an older checkpoint has left: "
                 << synced.message();
    return;
  }
  for (const std::string& path : left) RemoveQuietly(path);
}

}  // namespace capstan
