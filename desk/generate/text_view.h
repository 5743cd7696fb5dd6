// SPDX-License-Identifier: Apache-2.0
//
// Shows text on a terminal as a model writes it, in order or in any order.
#ifndef CAPSTAN_DESK_GENERATE_TEXT_VIEW_H_
#define CAPSTAN_DESK_GENERATE_TEXT_VIEW_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "inference/decode/stop_strings.h"
#include "plugins/sdk/tokenizer.h"
#include "trainer/metrics/console.h"

namespace capstan {

// Decodes a byte stream cut anywhere: emits only whole characters; invalid
// bytes and characters that would move the cursor become U+FFFD.
class TextStream {
 public:
  // Returns what can be shown now.
  std::string Add(absl::string_view bytes);
  // Returns the rest.
  std::string Finish();

 private:
  std::string rest_;
};

// A text as its tokens come, up to the first of some strings.
class StoppedText {
 public:
  explicit StoppedText(const StopStrings& stops) : stops_(stops) {}

  // Returns what can be shown now.
  std::string Add(absl::string_view bytes);
  // Returns the rest.
  std::string Finish();
  bool ended() const { return stops_.EndIn(text_); }
  // All of it.
  std::string text() const { return text_.substr(0, stops_.EndOf(text_)); }

 private:
  const StopStrings& stops_;
  std::string text_;
  size_t shown_ = 0;  // bytes of text_
  TextStream stream_;
};

// The terminal cells of `text`, which is printable (console.h) and has no
// newline or tab.
int CellsOf(absl::string_view text);

// Wraps `text` into lines of at most `columns` terminal cells, tabs as spaces.
// `text` is printable (console.h). Returns at least one line.
std::vector<std::string> TerminalLines(absl::string_view text, int columns);

// Redraws the text in place on a terminal; elsewhere prints only the final
// text.
class MaskedTextView {
 public:
  // `fd` isn't owned. `before` (a prompt) precedes the tokens, which end before
  // the first of `stops` (-1: none), and their text before that of `strings`.
  MaskedTextView(int fd, const Tokenizer* tokenizer, int64_t mask_token,
                 std::vector<int64_t> stops, absl::string_view before,
                 StopStrings strings = StopStrings());

  // `tokens` has mask_token where none is chosen yet, shown as a light block.
  // Text that doesn't fit the screen is cut off at the top.
  void Show(absl::Span<const int64_t> tokens);
  // Replaces what Show has drawn with the whole text, and ends the line.
  void Finish(absl::Span<const int64_t> tokens);

  // The decoded bytes of `tokens` up to the first stop.
  std::string Decode(absl::Span<const int64_t> tokens) const;

 private:
  absl::Span<const int64_t> BeforeStop(absl::Span<const int64_t> tokens) const;
  // Escape codes that move to the start of what is drawn and clear it.
  std::string Erase();

  const int fd_;
  const Console console_;
  const Tokenizer* const tokenizer_;
  const int64_t mask_token_;
  std::vector<int64_t> stops_;
  const std::string before_;
  const StopStrings strings_;
  size_t drawn_ = 0;  // lines
};

}  // namespace capstan

#endif  // CAPSTAN_DESK_GENERATE_TEXT_VIEW_H_
