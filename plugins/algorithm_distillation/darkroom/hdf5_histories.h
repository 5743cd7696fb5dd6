// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_DARKROOM_HDF5_HISTORIES_H_
#define CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_DARKROOM_HDF5_HISTORIES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/algorithm_distillation/darkroom/history_file.h"

namespace capstan::darkroom {

// The datasets of a task's group, and what they may hold.
struct Dataset {
  const char* name;
  int rank;  // 3: [T, S, N], 2: [T, S]
  std::vector<uint8_t> History::*values;
  bool is_bool;
  const char* what;  // a value
};

inline constexpr Dataset kDatasets[] = {
    {"states", 3, &History::states, false, "a state"},
    {"actions", 2, &History::actions, false, "an action"},
    {"rewards", 2, &History::rewards, false, "a reward"},
    {"next_states", 3, &History::next_states, false, "a state"},
    {"dones", 2, &History::dones, true, "a bool"},
    {"compress_markers", 2, &History::compress_markers, false, "a marker"},
};
inline constexpr const Dataset& kStates = kDatasets[0];
inline constexpr const Dataset& kMarkers = kDatasets[5];

inline bool IsMarkers(const Dataset& dataset) {
  return dataset.values == kMarkers.values;
}

// The values that a dataset may have at an index of its last axis: `count` from
// `least` on.
struct Values {
  int least = 0;
  int count = 0;
};
inline Values ValuesOf(const Dataset& dataset, const EnvironmentSpec& spec,
                       size_t index) {
  if (dataset.rank == 3) return {0, spec.bounds[index]};
  if (dataset.values == &History::actions) return {0, spec.actions};
  if (dataset.values == &History::rewards) {
    return {spec.least_reward, spec.most_reward - spec.least_reward + 1};
  }
  return {0, IsMarkers(dataset) ? 3 : 2};
}

// Of the dataset's values for a step of a stream.
inline int64_t Width(const Dataset& dataset, int64_t numbers) {
  return dataset.rank == 3 ? numbers : 1;
}

inline constexpr int64_t kMostOriginBytes = 1 << 16;

// What a dataset of so many values may take, whatever its file says: deflate
// makes at most 1032 bytes of one, other filters more of nothing but zeros.
inline constexpr uint64_t kMostBytesPerStoredByte = 2048;
inline constexpr uint64_t kAlwaysFine = 1 << 20;

// A file of learning histories, read by libhdf5 in this process: HistoryReader
// does so in another one, as libhdf5 trusts what files say. Its interface is
// HistoryReader's.
class Hdf5Histories {
 public:
  // `bytes`: the file's.
  static absl::StatusOr<std::unique_ptr<Hdf5Histories>> Open(
      const std::string& path, int64_t bytes);
  ~Hdf5Histories();
  Hdf5Histories(const Hdf5Histories&) = delete;
  Hdf5Histories& operator=(const Hdf5Histories&) = delete;

  const std::vector<int>& tasks() const { return tasks_; }
  absl::StatusOr<HistoryShape> Shape(int task) const;
  absl::StatusOr<History> Read(int task, const EnvironmentSpec& spec,
                               int64_t steps, int64_t streams) const;
  // The attribute's text; "" if there is none.
  absl::StatusOr<std::string> OriginText() const;

 private:
  Hdf5Histories(std::string path, int64_t file, int64_t bytes)
      : path_(std::move(path)), file_(file), bytes_(bytes) {}

  absl::Status ListTasks();

  const std::string path_;
  const int64_t file_;   // HDF5's handle
  const int64_t bytes_;  // the file's
  std::vector<int> tasks_;
};

}  // namespace capstan::darkroom

#endif  // CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_DARKROOM_HDF5_HISTORIES_H_
