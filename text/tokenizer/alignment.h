// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_TOKENIZER_ALIGNMENT_H_
#define CAPSTAN_TEXT_TOKENIZER_ALIGNMENT_H_

#include <cstddef>
#include <vector>

#include "absl/strings/string_view.h"

namespace capstan::tokenizer {

// Maps bytes of a transformed text to the text it was made from. Built from
// start to end by Keep and Change.
class Alignment {
 public:
  // The next `bytes` bytes are unchanged.
  void Keep(size_t bytes);
  // The next `from` bytes of the old text became the next `to` bytes of the
  // new; either may be 0.
  void Change(size_t from, size_t to);

  // Old offset of what begins, or ends, at offset `place` of the new text.
  // Offsets inside a change map to the whole change.
  size_t Begin(size_t place) const;
  size_t End(size_t place) const;

 private:
  struct Run {
    size_t old_begin;
    size_t new_begin;
    bool kept;
  };
  // The last run that begins at or before offset `place` of the new text.
  size_t Find(size_t place) const;
  size_t OldEnd(size_t run) const;

  std::vector<Run> runs_;
  size_t old_size_ = 0;
  size_t new_size_ = 0;
};

// A text derived from part of another; the caller's text has no parent. Must
// outlive its pieces.
struct Frame {
  absl::string_view text;
  const Frame* parent = nullptr;
  absl::string_view in_parent;           // a part of parent->text
  const Alignment* alignment = nullptr;  // in_parent to text
};

// A part of a frame's text.
struct Piece {
  const Frame* frame;
  absl::string_view text;
};

// Maps bytes [*begin, *end) of `frame`'s text to offsets in the caller's text.
void ToCaller(const Frame* frame, size_t* begin, size_t* end);

}  // namespace capstan::tokenizer

#endif  // CAPSTAN_TEXT_TOKENIZER_ALIGNMENT_H_
