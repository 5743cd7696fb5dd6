// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_TOKENIZER_UNICODE_H_
#define CAPSTAN_TEXT_TOKENIZER_UNICODE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace capstan::tokenizer {

bool IsUtf8(absl::string_view text);

// Returns the character at text[*at], which must be valid UTF-8, and advances
// *at past it.
uint32_t NextCharacter(absl::string_view text, size_t* at);
// The same of text that may end in the middle of a character: U+FFFD.
uint32_t CharacterAt(absl::string_view text, size_t at);
// Start of the character that ends at `end` > 0.
size_t BeginOfLast(absl::string_view text, size_t end);
void AppendCharacter(uint32_t code, std::string* text);

// Length of the UTF-8 character that begins with this byte; 1 for bytes that
// begin none.
inline size_t CharacterBytes(char first) {
  const auto c = static_cast<unsigned char>(first);
  return c < 0xc0 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}

inline bool IsContinuation(char c) {
  return (static_cast<unsigned char>(c) & 0xc0) == 0x80;
}

// What Hugging Face's tokenizers takes characters for: each follows another
// library, and so another version of Unicode (unicode_tables.h).
bool IsSpace(uint32_t code);        // White_Space
bool IsWord(uint32_t code);         // \w of the regex crate
bool IsNumber(uint32_t code);       // char::is_numeric
bool IsPunctuation(uint32_t code);  // P, or ASCII's
bool IsCombiningMark(uint32_t code);
bool IsNonspacingMark(uint32_t code);
bool IsBertControl(uint32_t code);    // with U+0000 and U+FFFD
bool IsNotNormalized(uint32_t code);  // by Unicode's forms
int ScriptOf(uint32_t code);          // 0: goes with any other
void AppendLowercase(uint32_t code, std::string* text);

// `text` without the characters at these ends for which drop(character).
template <typename Drop>
absl::string_view StripCharacters(absl::string_view text, const Drop& drop,
                                  bool left, bool right) {
  while (left && !text.empty() && drop(CharacterAt(text, 0))) {
    text.remove_prefix(std::min(CharacterBytes(text[0]), text.size()));
  }
  while (right && !text.empty()) {
    const size_t last = BeginOfLast(text, text.size());
    if (!drop(CharacterAt(text, last))) break;
    text.remove_suffix(text.size() - last);
  }
  return text;
}

// Byte-level vocabularies write each byte as a character (bytes_to_unicode of
// GPT-2's encoder.py): printable Latin-1 as itself, the other 68 bytes as
// U+0100, U+0101, .. in order.
uint32_t ByteToCharacter(int byte);
// The bytes represented by such a vocabulary's token; false if one of its
// characters represents none.
bool CharactersToBytes(absl::string_view token, std::string* bytes);

}  // namespace capstan::tokenizer

#endif  // CAPSTAN_TEXT_TOKENIZER_UNICODE_H_
