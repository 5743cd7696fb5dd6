// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DATASETS_AD_HISTORY_HISTORY_TABLE_H_
#define CAPSTAN_DATASETS_AD_HISTORY_HISTORY_TABLE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "plugins/algorithm_distillation/darkroom.h"

namespace capstan::ad_history {

// Bytes of a transition: row, column, action, reward, next row, next column.
constexpr int64_t kTransitionBytes = 6;

// What to read from a file.
struct TableOptions {
  std::string path;
  darkroom::Room room;
  darkroom::Variant variant = darkroom::Variant::kGoals;
  std::vector<int> tasks;  // those of them in the file
  int64_t streams = 0;     // 0: all
  int64_t steps = 0;
};

// Histories in contiguous memory: 44 MB for 73 tasks of 100 streams of 1000
// steps. Ranks forked later share it.
class HistoryTable {
 public:
  // Reads the file. Returns the file's errors, and a FieldError of "path" if it
  // has none of the tasks, or of "steps" or "streams" if it has fewer.
  static absl::StatusOr<std::shared_ptr<const HistoryTable>> Load(
      const TableOptions& options);

  // The tasks with histories, in the order of the options; all have the same
  // number of histories.
  const std::vector<int>& tasks() const { return tasks_; }
  // All tasks in the file, ascending.
  const std::vector<int>& tasks_of_file() const { return tasks_of_file_; }
  int64_t histories() const { return histories_; }
  int64_t steps() const { return steps_; }
  // Transitions of a history, [steps, kTransitionBytes].
  const uint8_t* history(int64_t index) const {
    return bytes_.data() + index * steps_ * kTransitionBytes;
  }

 private:
  HistoryTable() = default;

  std::vector<int> tasks_;
  std::vector<int> tasks_of_file_;
  int64_t histories_ = 0;
  int64_t steps_ = 0;
  std::vector<uint8_t> bytes_;
};

}  // namespace capstan::ad_history

#endif  // CAPSTAN_DATASETS_AD_HISTORY_HISTORY_TABLE_H_
