// SPDX-License-Identifier: Apache-2.0
#include "cluster/launch/child_output.h"

#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace capstan {
namespace {

// Longer lines are broken, so that a rank writing without end can't exhaust the
// parent's memory.
constexpr size_t kMaxLine = 1 << 16;

}  // namespace

std::string PrefixedLines::Add(absl::string_view bytes) {
  std::string lines;
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    if (end == absl::string_view::npos) {
      absl::StrAppend(&rest_, bytes);
      if (rest_.size() > kMaxLine) absl::StrAppend(&lines, Finish());
      break;
    }
    absl::StrAppend(&lines, prefix_, rest_, bytes.substr(0, end + 1));
    rest_.clear();
    bytes.remove_prefix(end + 1);
  }
  return lines;
}

std::string PrefixedLines::Finish() {
  if (rest_.empty()) return "";
  const std::string line = absl::StrCat(prefix_, rest_, "\n");
  rest_.clear();
  return line;
}

bool ReadAvailable(int fd, std::string* bytes) {
  char buffer[16384];
  while (true) {
    const ssize_t got = read(fd, buffer, sizeof(buffer));
    if (got > 0) {
      bytes->append(buffer, got);
      // Give the other ranks' pipes their turn.
      if (got < static_cast<ssize_t>(sizeof(buffer))) return true;
      if (bytes->size() >= kMaxLine) return true;
    } else if (got == 0) {
      return false;
    } else if (errno != EINTR) {
      return errno == EAGAIN;
    }
  }
}

bool WriteAll(int fd, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = write(fd, bytes.data(), bytes.size());
    if (put >= 0) {
      bytes.remove_prefix(put);
    } else if (errno == EAGAIN) {
      // A terminal that another process made non-blocking.
      pollfd ready = {fd, POLLOUT, 0};
      poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

}  // namespace capstan
