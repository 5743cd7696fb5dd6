// SPDX-License-Identifier: Apache-2.0
//
// Standard output, be it a terminal or not.
#ifndef CAPSTAN_TRAINER_METRICS_CONSOLE_H_
#define CAPSTAN_TRAINER_METRICS_CONSOLE_H_

#include <string>

#include "absl/strings/string_view.h"

namespace capstan {

class Console {
 public:
  // Does not own the descriptor.
  explicit Console(int fd);

  // Whether lines can be redrawn and text be bold.
  bool terminal() const { return terminal_; }
  // The terminal's width now; 80 if it doesn't say.
  int Columns() const;
  // Nobody is told of errors: a reader that has gone must not end a run.
  void Write(absl::string_view text) const;

 private:
  const int fd_;
  const bool terminal_;
};

// `text` with U+FFFD for every byte that is no valid UTF-8 and for every
// control character but newline and tab, so that a model's text can't send
// escape sequences to a terminal.
std::string PrintableText(absl::string_view text);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_METRICS_CONSOLE_H_
