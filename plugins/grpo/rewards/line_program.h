// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_GRPO_REWARDS_LINE_PROGRAM_H_
#define CAPSTAN_PLUGINS_GRPO_REWARDS_LINE_PROGRAM_H_

#include <sys/types.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/subprocess.h"
#include "plugins/grpo/rewards/end_guard.h"

namespace capstan::grpo {

// A program that answers lines by lines. It, and what it starts in its process
// group, end with this object, with the thread that started it, and when this
// process is killed.
class LineProgram {
 public:
  // Of `program` words, path and variables count. Errors name its file.
  static absl::StatusOr<std::unique_ptr<LineProgram>> Start(
      ::capstan::Program program);
  ~LineProgram();
  LineProgram(const LineProgram&) = delete;
  LineProgram& operator=(const LineProgram&) = delete;

  // Sends `text`, whole lines, and appends what it says to *lines, without line
  // ends, until there are `count`. Meanwhile it may write before it has read
  // all. Looks for more lines than these for some milliseconds. Errors, after
  // which this object is of no use: UNAVAILABLE if it dies or closes its input
  // or output, DEADLINE_EXCEEDED, and INVALID_ARGUMENT if it says more than it
  // was asked, or a line of more than kMostLineBytes.
  absl::Status Ask(absl::string_view text, size_t count, double limit_seconds,
                   std::vector<std::string>* lines);

  static constexpr size_t kMostLineBytes = 64 << 10;

 private:
  LineProgram() = default;

  // Reads what there is; false at the end of its output.
  bool Read();
  // Takes whole lines from what was read.
  absl::Status TakeLines(size_t count, std::vector<std::string>* lines);
  absl::Status Ended(absl::string_view closed);

  int to_ = -1;    // a socket, since a pipe's writer gets SIGPIPE
  int from_ = -1;  // of a pipe
  pid_t program_ = -1;
  std::unique_ptr<EndGuard> guard_;  // kills the program's group
  std::string said_;                 // not taken yet
};

}  // namespace capstan::grpo

#endif  // CAPSTAN_PLUGINS_GRPO_REWARDS_LINE_PROGRAM_H_
