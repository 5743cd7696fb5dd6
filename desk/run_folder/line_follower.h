// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_RUN_FOLDER_LINE_FOLLOWER_H_
#define CAPSTAN_DESK_RUN_FOLDER_LINE_FOLLOWER_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace capstan {

// Reads the lines of a file that another process appends to, and that a resumed
// run may have cut or replaced. One thread.
class LineFollower {
 public:
  // What the bytes behind a line may be read for, beyond its end: simdjson
  // parses them in place.
  static constexpr size_t kReadableBehind = 64;
  // A longer line is passed over.
  static constexpr size_t kLongestLine = size_t{16} << 20;

  using LineFunction =
      std::function<void(absl::string_view line, int64_t offset)>;

  // Begins at the line at `offset`.
  explicit LineFollower(std::string path, int64_t offset = 0)
      : path_(std::move(path)), offset_(offset) {}

  // Calls `line` with each line that is whole and new, up to about `most_bytes`
  // of them, and with its place in the file. If what was read before is no
  // longer there, it calls `restart` and begins at the start. Returns whether
  // more can be read at once. A file that is missing, or has vanished, has no
  // new lines.
  bool Poll(const LineFunction& line, const std::function<void()>& restart,
            int64_t most_bytes = std::numeric_limits<int64_t>::max());

 private:
  bool IsAnother(int fd, int64_t bytes, uint64_t inode) const;

  const std::string path_;
  int64_t offset_;         // of the first line that wasn't whole
  bool skipping_ = false;  // within a line that is too long
  uint64_t inode_ = 0;
  // The last bytes before `offset_`, by which a file that was cut and has grown
  // again is told from one that has only grown.
  std::string last_;
};

}  // namespace capstan

#endif  // CAPSTAN_DESK_RUN_FOLDER_LINE_FOLLOWER_H_
