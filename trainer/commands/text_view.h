// SPDX-License-Identifier: Apache-2.0
//
// Text on a terminal while a model writes it, in order or in any order.
#ifndef CAPSTAN_TRAINER_COMMANDS_TEXT_VIEW_H_
#define CAPSTAN_TRAINER_COMMANDS_TEXT_VIEW_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "plugins/sdk/tokenizer.h"
#include "trainer/metrics/console.h"

namespace capstan {

// Text that comes in pieces of bytes, cut anywhere: a character is given when
// it is whole, and what is no text (or would move a terminal's cursor) as
// U+FFFD.
class TextStream {
 public:
  // What can be shown now.
  std::string Add(absl::string_view bytes);
  // The rest.
  std::string Finish();

 private:
  std::string rest_;
};

// `text` as lines of at most `columns` cells of a terminal: broken where it is
// too wide, tabs as spaces. `text` is printable (console.h). At least one line.
std::vector<std::string> TerminalLines(absl::string_view text, int columns);

// On a terminal the text is drawn anew in place; elsewhere only its end shows.
class MaskedTextView {
 public:
  // Writes to `fd`, a descriptor of the caller's. `before` is text that stands
  // before the tokens, a prompt; the tokens end before the first of `stops`
  // (-1: none).
  MaskedTextView(int fd, const Tokenizer* tokenizer, int64_t mask_token,
                 std::vector<int64_t> stops, absl::string_view before);

  // `tokens` with mask_token where none is chosen yet, which shows as a light
  // block; what doesn't fit the screen is left out above.
  void Show(absl::Span<const int64_t> tokens);
  // Writes the whole text in place of what Show has drawn, and ends the line.
  void Finish(absl::Span<const int64_t> tokens);

  // The text of `tokens`, bytes, up to the first stop.
  std::string Decode(absl::Span<const int64_t> tokens) const;

 private:
  absl::Span<const int64_t> BeforeStop(absl::Span<const int64_t> tokens) const;
  // Moves to the beginning of what is drawn and wipes it out.
  std::string Erase();

  const int fd_;
  const Console console_;
  const Tokenizer* const tokenizer_;
  const int64_t mask_token_;
  std::vector<int64_t> stops_;
  const std::string before_;
  size_t drawn_ = 0;  // lines
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_COMMANDS_TEXT_VIEW_H_
