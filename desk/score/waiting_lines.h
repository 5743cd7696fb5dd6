// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_SCORE_WAITING_LINES_H_
#define CAPSTAN_DESK_SCORE_WAITING_LINES_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace capstan {

// The lines of a file, pipe or socket, as many at a time as have been written.
class WaitingLines {
 public:
  // `fd` stays the caller's.
  explicit WaitingLines(int fd) : fd_(fd) {}

  // Waits for a line, and returns it with those behind it that are there, up to
  // `most`, without their ends. None: the input has ended. What stands behind
  // the last line's end is a line, too, unless it is empty.
  absl::StatusOr<std::vector<std::string>> Next(size_t most);

 private:
  void Take(size_t most, std::vector<std::string>* lines);

  const int fd_;
  std::string read_;  // not taken yet
  bool ended_ = false;
};

}  // namespace capstan

#endif  // CAPSTAN_DESK_SCORE_WAITING_LINES_H_
