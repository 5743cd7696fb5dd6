// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/checkpoint_folder.h"

#include <stdio.h>

#include <filesystem>
#include <map>
#include <set>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/files.h"
#include "base/status.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/manifest.h"

// After LibTorch's headers, which have macros of the same names.
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

// The step of a "step-NNNNNNNN", or -1.
int64_t StepOf(absl::string_view name) {
  int64_t step = -1;
  if (!absl::ConsumePrefix(&name, "step-") || name.size() < 8 ||
      name.find_first_not_of("0123456789") != absl::string_view::npos ||
      !absl::SimpleAtoi(name, &step)) {
    return -1;
  }
  return step;
}

// Whole checkpoints by step. One that was being replaced by a newer one of the
// same step when the run was killed may still lie under its hidden name.
std::map<int64_t, std::string> WholeCheckpoints(const std::string& output_dir) {
  std::map<int64_t, std::string> found;
  for (const std::string& name : ListNames(Root(output_dir))) {
    absl::string_view plain = name;
    const bool old =
        absl::ConsumePrefix(&plain, ".") && absl::ConsumeSuffix(&plain, ".old");
    const int64_t step = StepOf(old ? plain : name);
    const std::string path = absl::StrCat(Root(output_dir), "/", name);
    if (step < 0 || !IsCheckpoint(path)) continue;
    if (old) {
      found.emplace(step, path);
    } else {
      found[step] = path;
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

void RemoveOldCheckpoints(const std::string& output_dir, int keep,
                          int64_t saved_step, int64_t best_step) {
  const std::string root = Root(output_dir);
  if (keep > 0) {
    std::map<int64_t, std::string> others = WholeCheckpoints(output_dir);
    others.erase(saved_step);
    others.erase(best_step);
    for (; others.size() >= keep; others.erase(others.begin())) {
      // Out of sight first: a half-removed one must not look whole.
      const auto& [step, path] = *others.begin();
      const std::string trash =
          HiddenSibling(CheckpointFolder(output_dir, step), "trash");
      RemoveQuietly(trash);
      if (rename(path.c_str(), trash.c_str()) != 0) {
        PLOG(WARNING) << "cannot remove the old checkpoint " << path;
      }
    }
  }
  std::set<std::string> whole;
  for (const auto& [step, path] : WholeCheckpoints(output_dir)) {
    whole.insert(path);
  }
  for (const std::string& name : ListNames(root)) {
    const std::string path = root + "/" + name;
    if (absl::StartsWith(name, ".step-") && whole.count(path) == 0) {
      RemoveQuietly(path);
    }
  }
}

std::string NewestCheckpoint(const std::string& output_dir) {
  const std::map<int64_t, std::string> found = WholeCheckpoints(output_dir);
  return found.empty() ? "" : found.rbegin()->second;
}

bool IsCheckpoint(const std::string& folder) {
  return PathExists(absl::StrCat(folder, "/", kManifestFile));
}

absl::StatusOr<TrainState> CheckpointState(const std::string& folder) {
  CAPSTAN_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(folder));
  return manifest.train_state;
}

absl::StatusOr<std::string> CheckpointConfig(const std::string& folder) {
  CAPSTAN_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(folder));
  return std::move(manifest.config_text);
}

}  // namespace capstan
