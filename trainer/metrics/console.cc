// SPDX-License-Identifier: Apache-2.0
#include "trainer/metrics/console.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <utf8proc.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace capstan {
namespace {

bool IsTerminal(int fd) {
  const char* const term = std::getenv("TERM");
  return isatty(fd) == 1 && term != nullptr && *term != '\0' &&
         absl::string_view(term) != "dumb";
}

// Length of the UTF-8 sequence at the start of `text` if it is safe to print,
// else 0.
size_t PrintableLength(absl::string_view text) {
  utf8proc_int32_t code = 0;
  const utf8proc_ssize_t length =
      utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                       static_cast<utf8proc_ssize_t>(text.size()), &code);
  const bool control = code < 0x20 || (code >= 0x7f && code < 0xa0);
  if (length <= 0 || (control && code != '\n' && code != '\t')) return 0;
  return static_cast<size_t>(length);
}

// Three significant digits of value / base^n, with the n-th unit.
std::string Scaled(double value, double base,
                   const std::vector<const char*>& units) {
  size_t unit = 0;
  // What would round to 1000 goes to the next unit.
  while (std::abs(value) >= 999.5 && unit + 1 < units.size()) {
    value /= base;
    ++unit;
  }
  const double size = std::abs(value);
  const int decimals = unit == 0 || size >= 99.95 ? 0 : (size >= 9.995 ? 1 : 2);
  return absl::StrFormat("%.*f%s", decimals, value, units[unit]);
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

std::string WithCommas(int64_t value) {
  std::string digits = absl::StrCat(value);
  const int first = value < 0 ? 1 : 0;
  for (int i = static_cast<int>(digits.size()) - 3; i > first; i -= 3) {
    digits.insert(i, ",");
  }
  return digits;
}

std::string ShortCount(double value) {
  return Scaled(value, 1000.0, {"", " k", " M", " B", " T"});
}

std::string ShortBytes(int64_t bytes) {
  return Scaled(static_cast<double>(bytes), 1024.0,
                {" B", " KiB", " MiB", " GiB", " TiB"});
}

std::string ShortDuration(double seconds) {
  if (seconds < 0.9995) return absl::StrFormat("%.3g ms", seconds * 1e3);
  if (seconds < 59.995) return absl::StrFormat("%.2f s", seconds);
  return ClockTime(seconds);
}

std::string ClockTime(double seconds) {
  if (!(seconds >= 0.0) || seconds > 1e12) return "?";
  const int64_t whole = std::llround(seconds);
  const int64_t hours = whole / 3600;
  const int64_t minutes = whole / 60 % 60;
  if (hours >= 24) return absl::StrCat(hours / 24, " d ", hours % 24, " h");
  if (hours > 0) {
    return absl::StrFormat("%d:%02d:%02d", hours, minutes, whole % 60);
  }
  return absl::StrFormat("%d:%02d", minutes, whole % 60);
}

std::string WrappedText(absl::string_view text, size_t indent, size_t columns) {
  std::string out, line;
  const auto end_line = [&] {
    if (line.empty()) return;
    absl::StrAppend(&out, std::string(indent, ' '), line, "\n");
    line.clear();
  };
  for (const absl::string_view word :
       absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    if (indent + line.size() + 1 + word.size() > columns) end_line();
    absl::StrAppend(&line, line.empty() ? "" : " ", word);
  }
  end_line();
  return out;
}

std::string TableText(
    const std::vector<std::pair<std::string, std::string>>& rows) {
  size_t width = 0;
  for (const auto& row : rows) width = std::max(width, row.first.size());
  std::string text;
  for (const auto& row : rows) {
    absl::StrAppend(&text, "  ", row.first,
                    std::string(width + 2 - row.first.size(), ' '), row.second,
                    "\n");
  }
  return text;
}

}  // namespace capstan
