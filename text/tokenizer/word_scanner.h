// SPDX-License-Identifier: Apache-2.0
//
// The regular expressions that most byte-level tokenizers split by, as loops
// over ASCII. word_scanner_test.cc holds them against PCRE2.
#ifndef CAPSTAN_TEXT_TOKENIZER_WORD_SCANNER_H_
#define CAPSTAN_TEXT_TOKENIZER_WORD_SCANNER_H_

#include <cstddef>

#include "absl/strings/string_view.h"

namespace capstan {
namespace tokenizer {

// GPT-2's, which a ByteLevel pre-tokenizer applies (use_regex).
extern const char kGpt2Words[];
// Llama 3's: up to three digits together.
extern const char kLlama3Words[];
// Qwen 2's: each digit alone.
extern const char kQwen2Words[];

// Bytes of the expression's match that begins at `begin` of the text that ends
// at `end`, which must be another; 0 where a character beyond ASCII has a say
// in it. Each of these expressions matches everywhere, and none looks behind.
using WordScanner = size_t (*)(const char* begin, const char* end);

// Null if `pattern` is none of them.
WordScanner FindWordScanner(absl::string_view pattern);

}  // namespace tokenizer
}  // namespace capstan

#endif  // CAPSTAN_TEXT_TOKENIZER_WORD_SCANNER_H_
