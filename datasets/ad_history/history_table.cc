// SPDX-License-Identifier: Apache-2.0
#include "datasets/ad_history/history_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "datasets/darkroom/history_file.h"

namespace capstan::ad_history {
namespace {

// Copies stream `stream` of time-major `from` to `to` [steps,
// kTransitionBytes].
void CopyStream(const darkroom::History& from, int64_t stream, uint8_t* to) {
  for (int64_t step = 0; step < from.steps; ++step) {
    const int64_t i = step * from.streams + stream;
    to[0] = from.states[2 * i];
    to[1] = from.states[2 * i + 1];
    to[2] = from.actions[i];
    to[3] = from.rewards[i];
    to[4] = from.next_states[2 * i];
    to[5] = from.next_states[2 * i + 1];
    to += kTransitionBytes;
  }
}

absl::Status CheckShape(const TableOptions& options, int task,
                        const darkroom::HistoryShape& shape, int64_t streams) {
  if (shape.steps < options.steps) {
    return FieldError(
        "steps",
        absl::StrCat("is ", options.steps, ", but ", options.path, " has only ",
                     shape.steps, " steps of task ", task));
  }
  if (shape.streams < streams) {
    return FieldError(
        "streams",
        absl::StrCat("is ", streams, ", but ", options.path, " has only ",
                     shape.streams, " streams of task ", task));
  }
  return absl::OkStatus();
}

// The requested tasks that are in the file.
absl::StatusOr<std::vector<int>> TasksIn(const darkroom::HistoryReader& file,
                                         const TableOptions& options) {
  const absl::Status status = file.CheckVariant(options.variant, options.room);
  if (!status.ok()) return FieldError("path", status.message());
  std::vector<int> tasks;
  for (const int task : options.tasks) {
    if (std::binary_search(file.tasks().begin(), file.tasks().end(), task)) {
      tasks.push_back(task);
    }
  }
  if (!tasks.empty()) return tasks;
  std::vector<int> wanted = options.tasks;
  std::sort(wanted.begin(), wanted.end());
  return FieldError(
      "path",
      absl::StrCat(options.path, " has histories of ", file.tasks().size(),
                   " tasks (", absl::StrJoin(file.tasks(), ", "),
                   "), but of none of those that are wanted: ",
                   absl::StrJoin(wanted, ", ")));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const HistoryTable>> HistoryTable::Load(
    const TableOptions& options) {
  absl::StatusOr<std::unique_ptr<darkroom::HistoryReader>> file =
      darkroom::HistoryReader::Open(options.path);
  if (!file.ok()) return FieldError("path", file.status().message());
  std::shared_ptr<HistoryTable> table(new HistoryTable);
  CAPSTAN_ASSIGN_OR_RETURN(table->tasks_, TasksIn(**file, options));
  table->tasks_of_file_ = (*file)->tasks();
  table->steps_ = options.steps;
  int64_t streams = options.streams;
  for (size_t i = 0; i < table->tasks_.size(); ++i) {
    const int task = table->tasks_[i];
    const auto shape = (*file)->Shape(task);
    if (!shape.ok()) return FieldError("path", shape.status().message());
    // All streams: the number that the first task has.
    if (streams == 0) streams = shape->streams;
    CAPSTAN_RETURN_IF_ERROR(CheckShape(options, task, *shape, streams));
    if (i == 0) {
      table->histories_ = streams * static_cast<int64_t>(table->tasks_.size());
      table->bytes_.resize(table->histories_ * table->steps_ *
                           kTransitionBytes);
    }
    const auto history =
        (*file)->Read(task, options.room, options.steps, streams);
    if (!history.ok()) return FieldError("path", history.status().message());
    for (int64_t stream = 0; stream < streams; ++stream) {
      const int64_t index = static_cast<int64_t>(i) * streams + stream;
      CopyStream(
          *history, stream,
          table->bytes_.data() + index * table->steps_ * kTransitionBytes);
    }
  }
  return std::shared_ptr<const HistoryTable>(std::move(table));
}

}  // namespace capstan::ad_history
