// SPDX-License-Identifier: Apache-2.0
//
// Learning histories: what agents did and got while they learned. A file is
// HDF5 with a group for each task, "0", "1", .., each with the datasets
//   states            integer [T, S, N]   observations; a room's: row, column
//   actions           integer [T, S]
//   rewards           integer [T, S]
//   next_states       integer [T, S, N]   after an episode's last step: the
//                                         start of the next episode
//   dones             bool    [T, S]      whether the step ended its episode
//   compress_markers  integer [T, S]      1: the first step of a region, 2: its
//                                         last, 0: others; may be missing
// of T steps of S agents (streams) that learned together. The file's attribute
// "capstan" says, in JSON, what it is (HistoryOrigin); it may be missing. h5py
// reads what is
// written here, and what it writes is read: integers of any width, and
// floating-point numbers that are whole.
//
// What is read must be in the file itself: HDF5 could take it from any file of
// the user's, by links, external storage or virtual datasets.
//
// libhdf5 trusts a file's bytes: a reader has a process of its own for it, so
// that a hostile file costs that process. Writing is done by one thread at a
// time. Nothing of HDF5 is printed.
#ifndef CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_DARKROOM_HISTORY_FILE_H_
#define CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_DARKROOM_HISTORY_FILE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/confined_child.h"
#include "plugins/algorithm_distillation/environment.h"

namespace capstan::darkroom {

// One group in compact form; time-major as in the file.
struct History {
  int64_t steps = 0;                      // T
  int64_t streams = 0;                    // S
  int64_t numbers = 2;                    // N, of an observation
  int least_reward = 0;                   // what 0 in rewards stands for
  std::vector<uint8_t> states;            // [T, S, N]
  std::vector<uint8_t> actions;           // [T, S]
  std::vector<uint8_t> rewards;           // [T, S]
  std::vector<uint8_t> next_states;       // [T, S, N]
  std::vector<uint8_t> dones;             // [T, S], 0 or 1
  std::vector<uint8_t> compress_markers;  // [T, S], or empty
};

struct HistoryShape {
  int64_t steps = 0;
  int64_t streams = 0;
};

// What the histories are of. The JSON has the same keys.
struct HistoryOrigin {
  // "darkroom", or the type of a plugin's config, with its bytes in `config`
  // (in JSON hexadecimal).
  std::string environment;
  std::string config;
  // Of a darkroom: whether tasks permute the actions (in JSON "tasks":
  // "permutations" or "goals"), and the cells on a side.
  bool permuted = false;
  int grid = 0;
  int horizon = 0;   // steps of an episode
  int64_t seed = 0;  // of the collector
};

// One thread at a time, of the process that has opened it. Any call returns
// INVALID_ARGUMENT if the process that reads for it has died of the file.
class HistoryReader {
 public:
  // Returns the file's errors (NOT_FOUND etc.), and INVALID_ARGUMENT if it
  // isn't HDF5, is damaged, or contains anything but groups of tasks. Forks.
  static absl::StatusOr<std::unique_ptr<HistoryReader>> Open(
      const std::string& path);

  const std::string& path() const { return path_; }

  // The tasks with groups, ascending.
  const std::vector<int>& tasks() const { return tasks_; }

  // What the file says of itself; nullopt: nothing.
  const absl::optional<HistoryOrigin>& origin() const { return origin_; }

  // INVALID_ARGUMENT if a task isn't one of the environment's.
  absl::Status CheckTasks(const Environment& environment) const;

  // The steps and streams of a task. INVALID_ARGUMENT if its group or a dataset
  // is missing, or a type or shape is not as above.
  absl::StatusOr<HistoryShape> Shape(int task) const;

  // The first `steps` steps of the first `streams` streams; -1: all. Errors: as
  // for Shape; fewer steps or streams in the file; observations, actions,
  // rewards or markers out of the spec's bounds; numbers that aren't whole;
  // read errors.
  absl::StatusOr<History> Read(int task, const EnvironmentSpec& spec,
                               int64_t steps = -1, int64_t streams = -1) const;

 private:
  HistoryReader(std::string path, int64_t bytes,
                std::unique_ptr<ConfinedChild> child)
      : path_(std::move(path)), bytes_(bytes), child_(std::move(child)) {}

  absl::Status AskForTasks();
  // The child's answer, of at most `most` bytes.
  absl::StatusOr<std::string> Ask(absl::string_view question,
                                  uint64_t most) const;
  absl::Status CheckShape(const HistoryShape& shape) const;
  // Of a dataset: how many the file can hold at most.
  uint64_t MostValues() const;
  absl::Status Damaged() const;

  const std::string path_;
  const int64_t bytes_;  // the file's
  const std::unique_ptr<ConfinedChild> child_;
  std::vector<int> tasks_;
  absl::optional<HistoryOrigin> origin_;
};

// Writes a file under a temporary name next to `path` and renames it when
// complete; otherwise nothing remains.
class HistoryWriter {
 public:
  // Returns errno's error if the folder isn't writable.
  static absl::StatusOr<std::unique_ptr<HistoryWriter>> Create(
      const std::string& path);
  ~HistoryWriter();
  HistoryWriter(const HistoryWriter&) = delete;
  HistoryWriter& operator=(const HistoryWriter&) = delete;

  // Says what the file is. Once.
  absl::Status Describe(const HistoryOrigin& origin);

  // Adds the group of a task, compressed with gzip. Once per task.
  absl::Status Write(int task, const History& history);

  // Completes the file and replaces any at `path`. The last call.
  absl::Status Commit();

 private:
  HistoryWriter(std::string path, std::string partial, int64_t file)
      : path_(std::move(path)), partial_(std::move(partial)), file_(file) {}

  const std::string path_;
  const std::string partial_;
  int64_t file_;  // HDF5's handle, or -1 when closed
};

}  // namespace capstan::darkroom

#endif  // CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_DARKROOM_HISTORY_FILE_H_
