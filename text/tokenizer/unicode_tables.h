// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_TOKENIZER_UNICODE_TABLES_H_
#define CAPSTAN_TEXT_TOKENIZER_UNICODE_TABLES_H_

#include <cstdint>

namespace capstan::tokenizer {

// Where the reference's sets of characters and those of utf8proc's general
// categories (unicode.cc) differ, as each has its version of Unicode: for each
// range how many characters are before it (since the last), and its length;
// behind the last is -1.
extern const int32_t kWordDifferences[];
extern const int32_t kNumberDifferences[];
extern const int32_t kPunctuationDifferences[];
extern const int32_t kCombiningDifferences[];
extern const int32_t kNonspacingDifferences[];
extern const int32_t kControlDifferences[];
// utf8proc normalizes them; the reference has an older version of Unicode, in
// which they have no decomposition and combine with nothing.
extern const int32_t kNotNormalized[];

// The same with a third number: by how much a range is lowered, where utf8proc
// differs; and the script of a range (1 and up).
extern const int32_t kLowercase[];
extern const int32_t kScripts[];

// What a \p{..} of PCRE2 lacks, in ranges as above.
struct AddedProperty {
  const char* name;  // null: the end
  int32_t ranges[64];
};
extern const AddedProperty kAddedProperties[];

}  // namespace capstan::tokenizer

#endif  // CAPSTAN_TEXT_TOKENIZER_UNICODE_TABLES_H_
