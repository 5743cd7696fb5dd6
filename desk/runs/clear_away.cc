// SPDX-License-Identifier: Apache-2.0
#include "desk/runs/clear_away.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/files.h"
#include "base/status.h"
#include "host/config/load_config.h"
#include "trainer/checkpoint/checkpoint_folders.h"
#include "trainer/metrics/reporter.h"
#include "trainer/session/held_folder.h"
#include "trainer/session/session.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

std::string Real(const std::string& path) {
  std::error_code error;
  const fs::path real = fs::weakly_canonical(path, error);
  return error ? path : real.string();
}

// A path that a run's config names; both without links.
struct NamedPath {
  const ListedRun* run = nullptr;
  std::string folder;  // the run's
  std::string path;
};

std::vector<NamedPath> PathsOf(const std::vector<ListedRun>& runs) {
  std::vector<NamedPath> paths;
  for (const ListedRun& run : runs) {
    const std::string folder = Real(run.folder);
    for (const auto& [field, values] : run.fields) {
      if (field == "output_dir") continue;
      for (const std::string& value : values) {
        if (!absl::StartsWith(value, "/")) continue;
        paths.push_back({&run, folder, Real(value)});
      }
    }
  }
  return paths;
}

// Another run whose config names the run's folder or something in it; null if
// there is none.
const ListedRun* UserOf(const ListedRun& run,
                        const std::vector<NamedPath>& paths) {
  const std::string folder = Real(run.folder);
  for (const NamedPath& named : paths) {
    if (named.folder == folder) continue;
    absl::string_view rest = named.path;
    if (absl::ConsumePrefix(&rest, folder) &&
        (rest.empty() || rest.front() == '/')) {
      return named.run;
    }
  }
  return nullptr;
}

// Whether final/ has the run's newest weights: a run that went on and was
// stopped has newer ones in its checkpoints.
bool FinalIsNewest(const std::string& folder) {
  const absl::optional<int64_t> completed = CompletedSteps(folder);
  if (!completed.has_value()) return false;
  const std::vector<StoredCheckpoint> stored = WholeCheckpoints(folder);
  for (const char* name : {"model.safetensors", "model.safetensors.index.json",
                           "adapter_model.safetensors"}) {
    const std::string weights = absl::StrCat(folder, "/final/", name);
    if (!PathExists(weights)) continue;
    if (stored.empty()) return true;
    std::error_code error;
    return stored[0].step <= *completed &&
           fs::last_write_time(weights, error) >=
               fs::last_write_time(stored[0].path + "/manifest.json", error) &&
           !error;
  }
  return false;
}

// Whether all files that a run writes when it begins are there: someone else's
// config.pbtxt makes no folder a run.
bool IsSurelyRun(const std::string& folder) {
  return IsRun(folder) && PathExists(folder + "/.lock") &&
         (PathExists(folder + "/events.jsonl") ||
          PathExists(folder + "/metrics.jsonl"));
}

// Whether another run is below the folder, or may be where it can't be read.
bool MayHaveRunInside(const std::string& folder) {
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end;
       !error && it != end; it.increment(error)) {
    const fs::path name = it->path().filename();
    if (it.depth() > 0 && (name == "config.pbtxt" || name == ".lock")) {
      return true;
    }
  }
  return static_cast<bool>(error);
}

// Why the run, or its checkpoints, must stay by what its folder has now; "":
// they needn't.
std::string KeptByFolder(const std::string& folder, bool only_checkpoints) {
  if (!ReadTags(folder).empty()) return "tagged";
  if (!IsSurelyRun(folder)) {
    return "may not be a run: it lacks .lock, or metrics.jsonl";
  }
  if (MayHaveRunInside(folder)) return "another run is below it";
  if (only_checkpoints && !FinalIsNewest(folder)) {
    return "its newest weights are in its checkpoints";
  }
  return "";
}

// Why the rule keeps a run of one name; "": it doesn't. `newer`: how many of
// that name began later.
std::string KeptByRule(const ListedRun& run, int64_t newer,
                       const ListedRun* best, const ClearRule& rule,
                       absl::Time now) {
  if (rule.newest.has_value() && newer < *rule.newest) {
    return "among the newest";
  }
  if (best == &run) return absl::StrCat("has the best ", *rule.best);
  if (rule.best.has_value() && best == nullptr) {
    return absl::StrCat("no run of this name has ", *rule.best);
  }
  if (rule.younger_days.has_value() &&
      now - run.begun < absl::Hours(24) * *rule.younger_days) {
    return absl::StrCat("younger than ", *rule.younger_days, " days");
  }
  return "";
}

const ListedRun* BestOf(const std::vector<const ListedRun*>& runs,
                        const std::string& metric) {
  const bool lower = LowerIsBetter(metric);
  const ListedRun* best = nullptr;
  for (const ListedRun* run : runs) {
    const absl::optional<double> value = run->Metric(metric);
    if (!value.has_value()) continue;
    if (best == nullptr || (lower ? *value < *best->Metric(metric)
                                  : *value > *best->Metric(metric))) {
      best = run;
    }
  }
  return best;
}

}  // namespace

std::vector<Verdict> Judge(const std::vector<ListedRun>& runs,
                           const std::vector<ListedRun>& others,
                           const ClearRule& rule, absl::Time now) {
  std::map<std::string, std::vector<const ListedRun*>> by_name;
  for (const ListedRun& run : runs) by_name[run.name].push_back(&run);
  const std::vector<NamedPath> paths = PathsOf(others);
  std::vector<Verdict> verdicts;
  for (auto& [name, named] : by_name) {
    std::stable_sort(named.begin(), named.end(),
                     [](const ListedRun* a, const ListedRun* b) {
                       return a->begun > b->begun;
                     });
    const ListedRun* const best =
        rule.best.has_value() ? BestOf(named, *rule.best) : nullptr;
    int64_t newer = 0;
    for (const ListedRun* run : named) {
      Verdict verdict;
      verdict.run = run;
      const ListedRun* const user = UserOf(*run, paths);
      if (run->status == RunStatus::kRunning) {
        verdict.keeps = "running";
      } else if (user != nullptr) {
        verdict.keeps = absl::StrCat("used by ", user->folder);
      } else {
        verdict.keeps = KeptByFolder(run->folder, rule.only_checkpoints);
      }
      if (verdict.keeps.empty()) {
        verdict.keeps = KeptByRule(*run, newer, best, rule, now);
      }
      ++newer;
      if (verdict.keeps.empty()) {
        verdict.bytes = rule.only_checkpoints
                            ? BytesBelow(run->folder + "/checkpoints")
                            : run->bytes;
      }
      verdicts.push_back(std::move(verdict));
    }
  }
  return verdicts;
}

absl::Status Remove(const Verdict& verdict, bool only_checkpoints) {
  const std::string& folder = verdict.run->folder;
  CAPSTAN_ASSIGN_OR_RETURN(
      const HeldFolder held,
      HoldFolder(folder, "runs gc", std::chrono::milliseconds(0)));
  // It may have been tagged, say, since the verdict.
  const std::string keeps = KeptByFolder(folder, only_checkpoints);
  const absl::Status removed =
      keeps.empty()
          ? RemoveTree(only_checkpoints ? folder + "/checkpoints" : folder)
          : absl::FailedPreconditionError(absl::StrCat("stays: ", keeps));
  for (const int fd : {held.fd, held.lock}) {
    if (fd >= 0) close(fd);
  }
  CAPSTAN_RETURN_IF_ERROR(removed);
  if (only_checkpoints) return absl::OkStatus();
  const fs::path siblings = fs::path(folder).parent_path();
  const fs::path latest = siblings / "latest";
  // Their names are times.
  const std::vector<std::string> left = RunsBelow(siblings.string());
  // Read last, as a run that begins meanwhile names itself there.
  const absl::StatusOr<std::string> named = ReadWholeFile(latest.string());
  if (!named.ok() ||
      absl::StripSuffix(*named, "\n") != fs::path(folder).filename().string()) {
    return absl::OkStatus();
  }
  if (!left.empty()) {
    return SetLatestRun(siblings.string(),
                        fs::path(left.back()).filename().string());
  }
  std::error_code error;
  fs::remove(latest, error);
  return absl::OkStatus();
}

}  // namespace capstan
