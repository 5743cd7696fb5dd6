// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_TOKENIZER_UNICODE_TABLES_H_
#define CAPSTAN_TEXT_TOKENIZER_UNICODE_TABLES_H_

#include <cstdint>

namespace capstan::tokenizer {

// Sets of characters: for each range how many characters are before it (since
// the last), and its length; behind the last is -1.
extern const int32_t kWordCharacters[];
extern const int32_t kNumbers[];
extern const int32_t kPunctuation[];
extern const int32_t kCombiningMarks[];
extern const int32_t kNonspacingMarks[];
extern const int32_t kBertControls[];
// utf8proc normalizes them; the reference has an older version of Unicode, in
// which they have no decomposition and combine with nothing.
extern const int32_t kNotNormalized[];

// The same with a third number: by how much a range is lowered, where utf8proc
// differs; and the script of a range (1 and up).
extern const int32_t kLowercase[];
extern const int32_t kScripts[];

// What a \p{..} or \w of PCRE2 lacks: ranges in its syntax.
struct AddedProperty {
  const char* name;  // null: the end
  const char* ranges;
};
extern const AddedProperty kAddedProperties[];

}  // namespace capstan::tokenizer

#endif  // CAPSTAN_TEXT_TOKENIZER_UNICODE_TABLES_H_
