// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_WATCH_LIVE_RUNS_H_
#define CAPSTAN_DESK_WATCH_LIVE_RUNS_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "desk/watch/run_json.h"
#include "desk/watch/run_reader.h"

namespace capstan {

// The run folders that `paths` mean, each with a name: runs themselves, or
// folders of runs (runs/NAME, what `compare` has written). Waits up to
// `patience` for a folder to have one, and says so on standard error. An error
// names a path without any.
absl::StatusOr<std::vector<std::pair<std::string, std::string>>> FindRuns(
    const std::vector<std::string>& paths,
    std::chrono::milliseconds patience = std::chrono::milliseconds(0));

// Runs whose folders a thread reads again and again. Thread-safe.
class LiveRuns {
 public:
  // `runs`: as FindRuns returns them. Those that come to be below `folders` are
  // added.
  explicit LiveRuns(
      const std::vector<std::pair<std::string, std::string>>& runs,
      std::vector<std::string> folders = {});
  ~LiveRuns();

  // Reads all that is new. Not beside Follow.
  void ReadAll();
  // Starts a thread that reads what is new each second. Call once.
  void Follow();

  size_t size() const;
  // A run's folder; unset if there is no such run.
  absl::optional<std::string> Folder(size_t run) const;
  // All runs: a list of RunJson.
  nlohmann::json AllJson() const;
  // RunReader::Detail of a run as JSON; null if there is no such run. Others
  // needn't wait while it reads.
  nlohmann::json Detail(size_t run, int64_t from, int64_t to,
                        int64_t points) const;

  // What `told` lacks: RunJson of the first run that has changed, with its
  // "index". Waits up to a second for one; null if none has.
  nlohmann::json Next(std::vector<absl::optional<RunTold>>* told) const;

  // Has a run "save", "stop", or (with `value`) set its "max_steps": appends a
  // line to control.jsonl in its folder. Returns the line's id, by which an
  // event answers. An error is for the user.
  absl::StatusOr<std::string> Control(size_t run, const std::string& action,
                                      absl::optional<int64_t> value);

  // Calls `use`, which asks this object for nothing, with each run while
  // nothing changes.
  void ForEach(const std::function<void(const RunReader&)>& use) const;

 private:
  void AddNewRuns();

  const std::vector<std::string> folders_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  // Changed by the thread that reads alone, and under the mutex.
  std::vector<std::unique_ptr<RunReader>> runs_;
  int64_t rounds_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace capstan

#endif  // CAPSTAN_DESK_WATCH_LIVE_RUNS_H_
