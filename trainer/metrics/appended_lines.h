// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_METRICS_APPENDED_LINES_H_
#define CAPSTAN_TRAINER_METRICS_APPENDED_LINES_H_

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
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

// Writes into such a file on a thread of its own: nobody waits for a slow disk
// but the destructor, which ends when all is written. Used by one thread.
class LineWriter {
 public:
  explicit LineWriter(AppendedLines lines);
  ~LineWriter();
  LineWriter(const LineWriter&) = delete;
  LineWriter& operator=(const LineWriter&) = delete;

  // Whether all lines were written. Who adds lines only then keeps no more than
  // one in memory, however long the disk takes.
  bool idle() const;
  // Returns the error of an earlier line; nothing is written after it.
  absl::Status Add(const std::string& object);

 private:
  void Write();

  AppendedLines lines_;  // the thread's
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::string waiting_;  // lines, with newlines between them
  bool writing_ = false;
  bool ending_ = false;
  absl::Status status_;
  std::thread thread_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_METRICS_APPENDED_LINES_H_
