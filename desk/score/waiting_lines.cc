// SPDX-License-Identifier: Apache-2.0
#include "desk/score/waiting_lines.h"

#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace capstan {

absl::StatusOr<std::vector<std::string>> WaitingLines::Next(size_t most) {
  std::vector<std::string> lines;
  for (;;) {
    Take(most, &lines);
    if (lines.size() == most || ended_) return lines;
    pollfd input = {fd_, POLLIN, 0};
    if (!lines.empty() && poll(&input, 1, 0) == 0) return lines;
    char buffer[1 << 16];
    const ssize_t size = read(fd_, buffer, sizeof(buffer));
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return absl::ErrnoToStatus(errno, "can't be read");
    read_.append(buffer, static_cast<size_t>(size));
    ended_ = size == 0;
  }
}

void WaitingLines::Take(size_t most, std::vector<std::string>* lines) {
  size_t at = 0;
  while (lines->size() < most) {
    size_t end = read_.find('\n', at);
    if (end == std::string::npos) {
      if (!ended_ || at >= read_.size()) break;
      end = read_.size();
    }
    const absl::string_view line =
        absl::string_view(read_).substr(at, end - at);
    lines->emplace_back(absl::StripSuffix(line, "\r"));
    at = end + 1;
  }
  read_.erase(0, std::min(at, read_.size()));
}

}  // namespace capstan
