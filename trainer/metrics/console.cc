// SPDX-License-Identifier: Apache-2.0
#include "trainer/metrics/console.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>

namespace capstan {
namespace {

bool IsTerminal(int fd) {
  const char* const term = std::getenv("TERM");
  return isatty(fd) == 1 && term != nullptr && *term != '\0' &&
         absl::string_view(term) != "dumb";
}

// Length of the UTF-8 sequence at the start of `text` if it is safe to print,
// else 0 (RFC 3629, section 4).
size_t PrintableLength(absl::string_view text) {
  const auto byte = [text](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) {
    const bool shown =
        (first >= 0x20 && first != 0x7f) || first == '\n' || first == '\t';
    return shown ? 1 : 0;
  }
  const size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  uint32_t code = first & (0x7f >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    code = code << 6 | (byte(i) & 0x3f);
  }
  const bool overlong =
      (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  const bool surrogate = code >= 0xd800 && code <= 0xdfff;
  const bool control = code < 0xa0;  // C1
  if (overlong || surrogate || control || code > 0x10ffff) return 0;
  return length;
}

}  // namespace

Console::Console(int fd) : fd_(fd), terminal_(IsTerminal(fd)) {}

int Console::Columns() const {
  winsize size = {};
  if (ioctl(fd_, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

void Console::Write(absl::string_view text) const {
  while (!text.empty()) {
    const ssize_t n = write(fd_, text.data(), text.size());
    if (n >= 0) {
      text.remove_prefix(n);
    } else if (errno == EAGAIN) {
      // Another process made the shared terminal non-blocking.
      pollfd ready = {fd_, POLLOUT, 0};
      if (poll(&ready, 1, /*timeout=*/1000) == 0) return;
    } else if (errno != EINTR) {
      return;
    }
  }
}

std::string PrintableText(absl::string_view text) {
  std::string printable;
  printable.reserve(text.size());
  while (!text.empty()) {
    const size_t length = PrintableLength(text);
    if (length > 0) {
      printable.append(text.data(), length);
    } else {
      printable += "\xef\xbf\xbd";
    }
    text.remove_prefix(length > 0 ? length : 1);
  }
  return printable;
}

}  // namespace capstan
