// SPDX-License-Identifier: Apache-2.0
//
// A run as its folder shows it, whether it still runs or not; opens no plugin.
#ifndef CAPSTAN_DESK_RUN_FOLDER_RUN_RECORD_H_
#define CAPSTAN_DESK_RUN_FOLDER_RUN_RECORD_H_

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "desk/run_folder/config_fields.h"

namespace capstan {

// Calls `use` with each whole line of a file, which may be growing; not at all
// if it can't be read.
void ForEachLine(const std::string& path,
                 const std::function<void(absl::string_view)>& use);

// The run's folder that a user means by `given`: runs/NAME/TIME,
// runs/NAME/latest, or runs/NAME for the newest.
absl::StatusOr<std::string> FindRun(const std::string& given);

// The folders of runs, or folders that have runs below them, that a user means;
// of an address what its runs tell of themselves, as it is now.
absl::StatusOr<std::vector<std::string>> FoldersOfRuns(
    const std::vector<std::string>& given);

// Of a path that isn't there: "; did you mean PATH?", with the nearest name
// there is in place of the one that isn't; "" if none is near.
std::string DidYouMeanPath(const std::string& path);

enum class RunStatus { kRunning, kCompleted, kStopped, kFailed };
// "running", ..
const char* StatusName(RunStatus status);

struct ListedRun {
  std::string folder;  // absolute
  std::string name;    // the config's
  absl::Time begun;
  // kFailed also for a run that is neither running nor says how it ended.
  RunStatus status = RunStatus::kFailed;
  int64_t steps = 0;
  int64_t max_steps = 0;  // 0: the config has epochs
  double seconds = 0.0;   // from its beginning to its newest step or event
  int64_t bytes = 0;      // of all its files
  // The newest value of each number in metrics.jsonl, and of each eval_NAME the
  // best as best_eval_NAME.
  std::map<std::string, double> metrics;
  FieldLists fields;
  std::vector<std::string> tags;  // in order

  absl::optional<double> Metric(const std::string& metric) const;
};

// Whether a run holds the lock of the folder (held_folder.h), which ends with
// its last process; unset if nothing tells: the folder has no lock, or its file
// system has none.
absl::optional<bool> LockIsHeld(const std::string& folder);
// The same, where no if nothing tells.
bool IsInUse(const std::string& folder);

// Whether a process of the run begins with an event of that kind.
bool IsFirstEvent(absl::string_view kind);

// The run's summary.json; an empty object if it has none, or if a process of
// the run has begun since and hasn't ended.
nlohmann::ordered_json SummaryOf(const std::string& folder);

// Bytes of all files below a folder.
int64_t BytesBelow(const std::string& folder);

// `folder` must be a run's (IsRun).
ListedRun ReadListedRun(const std::string& folder);
bool IsRun(const std::string& folder);

// The folders of the runs below `folder`, itself included, up to six folders
// deep, in order of their paths.
std::vector<std::string> RunsBelow(const std::string& folder);

// A run's tags are lines of its file tags.txt. Returns an error if one has a
// newline or is empty.
absl::Status SetTags(const std::string& folder,
                     const std::vector<std::string>& tags);
std::vector<std::string> ReadTags(const std::string& folder);

}  // namespace capstan

#endif  // CAPSTAN_DESK_RUN_FOLDER_RUN_RECORD_H_
