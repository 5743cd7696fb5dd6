// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_METRICS_APPENDED_LINES_H_
#define CAPSTAN_TRAINER_METRICS_APPENDED_LINES_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/files.h"

namespace capstan {

// Unix time in seconds, to the millisecond: the "time" of a line.
double UnixSeconds();

// A file of one JSON object per line, which the processes of a run append to
// one after the other; nothing in it is ever dropped. One thread.
class AppendedLines {
 public:
  // If a process died within a line, that line is ended here: readers pass over
  // it, as it isn't JSON.
  static absl::StatusOr<AppendedLines> Open(const std::string& path);

  // `object` is JSON on one line, without a newline.
  absl::Status Add(absl::string_view object);

 private:
  explicit AppendedLines(OutputFile file) : file_(std::move(file)) {}

  OutputFile file_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_METRICS_APPENDED_LINES_H_
