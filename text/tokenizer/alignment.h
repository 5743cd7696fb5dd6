// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_TOKENIZER_ALIGNMENT_H_
#define CAPSTAN_TEXT_TOKENIZER_ALIGNMENT_H_

#include <cstddef>
#include <vector>

#include "absl/strings/string_view.h"

namespace capstan {
namespace tokenizer {

// Where the bytes of a changed text come from in the text it was made of. Told
// from the beginning to the end by Keep and Change.
class Alignment {
 public:
  // The next bytes are the same in both.
  void Keep(size_t bytes);
  // The next `from` bytes of the old text have become the next `to` of the new;
  // any of the two may be 0.
  void Change(size_t from, size_t to);

  // The old place of what begins, or ends, at byte `place` of the new text.
  // What lies in a change has the whole change's place.
  size_t Begin(size_t place) const;
  size_t End(size_t place) const;

 private:
  struct Run {
    size_t old_begin;
    size_t new_begin;
    bool kept;
  };
  // The last run that begins at or before `place` of the new text.
  size_t Find(size_t place) const;
  size_t OldEnd(size_t run) const;

  std::vector<Run> runs_;
  size_t old_size_ = 0;
  size_t new_size_ = 0;
};

// A text that was made of a part of another one; the text that a caller gave
// has no parent. Lives as long as its pieces are worked on.
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

// The place in the caller's text of bytes [*begin, *end) of `frame`'s.
void ToCaller(const Frame* frame, size_t* begin, size_t* end);

}  // namespace tokenizer
}  // namespace capstan

#endif  // CAPSTAN_TEXT_TOKENIZER_ALIGNMENT_H_
