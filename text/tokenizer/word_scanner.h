// SPDX-License-Identifier: Apache-2.0
//
// The regular expressions of most byte-level tokenizers as loops over ASCII.
// word_scanner_test.cc compares them with PCRE2.
#ifndef CAPSTAN_TEXT_TOKENIZER_WORD_SCANNER_H_
#define CAPSTAN_TEXT_TOKENIZER_WORD_SCANNER_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/strings/string_view.h"

namespace capstan::tokenizer {

// A cache of recent short words' tokens: 2 MiB, one cache line per word,
// two-way set-associative with LRU replacement. Not thread-safe.
class WordCache {
 public:
  static constexpr size_t kMaxWord = 24;  // bytes
  static constexpr size_t kMaxIds = 8;

  // A word of 1 to kMaxWord bytes.
  struct Key {
    uint64_t words[3];
    uint32_t size;
    uint32_t place;
  };

  WordCache() : lines_(kLines) {}

  // `word` views `text`; bytes after the word but within `text` may be read.
  static Key MakeKey(absl::string_view word, absl::string_view text) {
    Key key;
    key.size = static_cast<uint32_t>(word.size());
    const char* const text_end = text.data() + text.size();
    if (text_end - word.data() >= static_cast<ptrdiff_t>(kMaxWord)) {
      std::memcpy(key.words, word.data(), kMaxWord);
      for (size_t i = 0; i < 3; ++i) key.words[i] &= Mask(word.size(), i);
    } else {
      std::memset(key.words, 0, kMaxWord);
      std::memcpy(key.words, word.data(), word.size());
    }
    const uint64_t hash = Fold(key.words[0] ^ 0x9e3779b97f4a7c15u,
                               key.words[1] ^ 0xc2b2ae3d27d4eb4fu) ^
                          Fold(key.words[2] ^ 0x165667b19e3779f9u,
                               key.size ^ 0x27d4eb2f165667c5u);
    key.place = static_cast<uint32_t>(hash >> 32) & (kLines - 2);
    return key;
  }

  // The word's tokens; sets *n to 0 on a miss.
  const uint32_t* Find(const Key& key, size_t* n) const {
    for (const Line* line = &lines_[key.place]; line < &lines_[key.place] + 2;
         ++line) {
      if (line->size == key.size &&
          std::memcmp(line->words, key.words, kMaxWord) == 0) {
        *n = line->n;
        return line->ids;
      }
    }
    *n = 0;
    return nullptr;
  }

  // n is 1 to kMaxIds.
  void Add(const Key& key, const uint32_t* ids, size_t n) {
    Line* const line = &lines_[key.place];
    line[1] = line[0];
    std::memcpy(line->words, key.words, kMaxWord);
    line->size = static_cast<uint16_t>(key.size);
    line->n = static_cast<uint16_t>(n);
    std::memcpy(line->ids, ids, n * sizeof(uint32_t));
  }

 private:
  static constexpr size_t kLines = 1 << 15;

  struct alignas(64) Line {
    uint64_t words[3] = {0, 0, 0};
    uint16_t size = 0;  // 0: unused
    uint16_t n = 0;
    uint32_t ids[kMaxIds] = {};
  };
  static_assert(sizeof(Line) == 64, "a cache line");

  // Mask of the bits in word i of a key for a word of `size` bytes.
  static uint64_t Mask(size_t size, size_t i) {
    if (size >= 8 * i + 8) return ~uint64_t{0};
    if (size <= 8 * i) return 0;
    return (uint64_t{1} << 8 * (size - 8 * i)) - 1;  // little-endian
  }
  static uint64_t Fold(uint64_t a, uint64_t b) {
    const auto product = static_cast<unsigned __int128>(a) * b;
    return static_cast<uint64_t>(product) ^
           static_cast<uint64_t>(product >> 64);
  }

  std::vector<Line> lines_;
};

// GPT-2's, used by ByteLevel pre-tokenizers (use_regex).
extern const char kGpt2Words[];
// Llama 3's: groups of up to three digits.
extern const char kLlama3Words[];
// Qwen 2's: each digit by itself.
extern const char kQwen2Words[];

// Length of the match at `begin` in the non-empty text [begin, end); 0 if a
// non-ASCII character could affect it. The expressions match everywhere and
// have no lookbehind.
using WordScanner = size_t (*)(const char* begin, const char* end);

// Null if `pattern` is none of them.
WordScanner FindWordScanner(absl::string_view pattern);

}  // namespace capstan::tokenizer

#endif  // CAPSTAN_TEXT_TOKENIZER_WORD_SCANNER_H_
