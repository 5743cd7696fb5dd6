// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_TOKENIZER_NORMALIZER_H_
#define CAPSTAN_TEXT_TOKENIZER_NORMALIZER_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "text/tokenizer/json_node.h"
#include "text/tokenizer/regex.h"
#include "text/tokenizer/unicode.h"

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

// More steps than any known file has; each takes a level of the stack.
constexpr size_t kMaxSteps = 64;

// Transforms a text before it is split. Thread-safe.
class Normalizer {
 public:
  virtual ~Normalizer() = default;

  // Returns whether it changed `text`, which must be UTF-8. If so, *out is the
  // new text, and *alignment, which must be empty, maps it to the old.
  virtual bool Apply(absl::string_view text, RegexState* state,
                     std::string* out, Alignment* alignment) const = 0;
};

// The "normalizer" of a tokenizer.json in order, with sequences flattened.
// Empty for null.
absl::StatusOr<std::vector<std::unique_ptr<Normalizer>>> MakeNormalizers(
    const JsonNode& node);

// Replaces each occurrence of `from` (not empty) with `to`.
std::unique_ptr<Normalizer> NewReplace(std::string from, std::string to);
// A normalizer or decoder {"type": "Replace", "pattern": .., "content": ".."}.
absl::StatusOr<std::unique_ptr<Normalizer>> MakeReplace(const JsonNode& node);

// The "pattern" of a Replace or a Split: {"String": ".."} or {"Regex": ".."};
// or what other steps look for.
struct Pattern {
  std::string literal;           // not empty, or
  std::unique_ptr<Regex> regex;  // not null, or
  // not null: each character for which it is true.
  bool (*character)(uint32_t) = nullptr;
};
absl::StatusOr<Pattern> MakePattern(const JsonNode& node);

// Calls use(begin, end) for each match in `text`, from left to right.
template <typename Use>
void ForEachMatch(const Pattern& pattern, absl::string_view text,
                  RegexState* state, const Use& use) {
  size_t begin = 0;
  size_t end = 0;
  if (pattern.regex != nullptr) {
    RegexMatches matches(*pattern.regex, text, state);
    while (matches.Next(&begin, &end)) use(begin, end);
  } else if (pattern.character != nullptr) {
    while (end < text.size()) {
      begin = end;
      if (pattern.character(NextCharacter(text, &end))) use(begin, end);
    }
  } else {
    while ((begin = text.find(pattern.literal, end)) != text.npos) {
      end = begin + pattern.literal.size();
      use(begin, end);
    }
  }
}

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };

// Normalization forms of Unicode Standard Annex 15.
std::unique_ptr<Normalizer> NewUnicodeForm(UnicodeForm form);

// Each byte as the character that byte-level vocabularies write for it.
std::unique_ptr<Normalizer> NewToByteCharacters();
// Appends those that `type` stands for and that replace each character by
// itself: "Lowercase", "Strip", "BertNormalizer", ..; false if it is another.
absl::StatusOr<bool> AddCharacterNormalizers(
    const JsonNode& node, const std::string& type,
    std::vector<std::unique_ptr<Normalizer>>* made);
// "Precompiled": replacements that SentencePiece has compiled into a trie.
absl::StatusOr<std::unique_ptr<Normalizer>> MakePrecompiled(
    const JsonNode& node);

// Replaces each maximal subpart of an invalid sequence with U+FFFD, as
// recommended by the Unicode Standard 3.9 (table 3-8).
std::string ToUtf8(absl::string_view text, Alignment* alignment);

// Records that a prefix was put before `text` (not empty); it maps to the first
// character.
void NotePrefix(absl::string_view text, size_t prefix_bytes,
                Alignment* alignment);

}  // namespace capstan::tokenizer

#endif  // CAPSTAN_TEXT_TOKENIZER_NORMALIZER_H_
