// SPDX-License-Identifier: Apache-2.0
//
// Text for people: numbers, tables, and where it goes, a terminal or not.
#ifndef CAPSTAN_TRAINER_METRICS_CONSOLE_H_
#define CAPSTAN_TRAINER_METRICS_CONSOLE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace capstan {

class Console {
 public:
  // Does not own the descriptor.
  explicit Console(int fd);

  // Whether lines can be redrawn and text can be bold.
  bool terminal() const { return terminal_; }
  // The terminal's current width; 80 if unknown.
  int Columns() const;
  // Ignores errors: a reader that went away must not end a run.
  void Write(absl::string_view text) const;

 private:
  const int fd_;
  const bool terminal_;
};

// `text` with U+FFFD for each invalid UTF-8 byte and each control character but
// newline and tab, so that a model can't send escape sequences to a terminal.
std::string PrintableText(absl::string_view text);

// 1049088 -> "1,049,088".
std::string WithCommas(int64_t value);
// 1049088 -> "1.05 M"; below 1,000 the number itself.
std::string ShortCount(double value);
// 188743680 -> "180 MiB".
std::string ShortBytes(int64_t bytes);
// 0.0451 -> "45.1 ms", 2.5 -> "2.50 s", 75 -> "1:15", 4000 -> "1:06:40".
std::string ShortDuration(double seconds);
// 75.4 -> "1:15", 4000 -> "1:06:40", two days and a bit -> "2 d 3 h"; "?" if
// unknown (negative or not finite).
std::string ClockTime(double seconds);

// `text` in lines of up to `columns`, each behind `indent` spaces.
std::string WrappedText(absl::string_view text, size_t indent,
                        size_t columns = 80);

// Names and values in two columns, one pair per line.
std::string TableText(
    const std::vector<std::pair<std::string, std::string>>& rows);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_METRICS_CONSOLE_H_
