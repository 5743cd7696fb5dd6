// SPDX-License-Identifier: Apache-2.0
//
// Standard output, whether a terminal or not.
#ifndef CAPSTAN_TRAINER_METRICS_CONSOLE_H_
#define CAPSTAN_TRAINER_METRICS_CONSOLE_H_

#include <string>

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

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_METRICS_CONSOLE_H_
