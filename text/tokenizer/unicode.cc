// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/unicode.h"

#include <simdjson.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "text/tokenizer/unicode_tables.h"

namespace capstan::tokenizer {
namespace {

bool Printable(int byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) ||
         (byte >= 174 && byte <= 255);
}

struct ByteTable {
  std::array<uint32_t, 256> character;
  std::array<int, 324> byte;  // -1: represents none

  ByteTable() {
    byte.fill(-1);
    uint32_t next = 256;
    for (int b = 0; b < 256; ++b) {
      character[b] = Printable(b) ? b : next++;
      byte[character[b]] = b;
    }
  }
};

const ByteTable& Bytes() {
  static const ByteTable table;
  return table;
}

// General categories of utf8proc, which are numbered in their standard's order,
// from `first` to `last`: a bit each.
constexpr uint32_t Categories(utf8proc_category_t first,
                              utf8proc_category_t last) {
  return (2u << last) - (1u << first);
}
constexpr uint32_t kLetters =
    Categories(UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LO);
constexpr uint32_t kMarks =
    Categories(UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_ME);

// A set of characters, as bits.
class CharacterSet {
 public:
  // Those of the categories, but for the differences, which are in the set if
  // those are not.
  CharacterSet(uint32_t categories, const int32_t* differences)
      : bits_(kCodes) {
    // Other planes have no assigned characters, or only private ones.
    for (const auto& [begin, end] :
         {std::pair(0u, 0x40000u), std::pair(0xe0000u, 0xe1000u)}) {
      for (uint32_t code = begin; categories != 0 && code < end; ++code) {
        const auto category =
            utf8proc_category(static_cast<utf8proc_int32_t>(code));
        bits_[code] = (categories >> category & 1) != 0;
      }
    }
    uint32_t at = 0;
    for (; *differences >= 0; differences += 2) {
      at += differences[0];
      for (int32_t i = 0; i < differences[1]; ++i, ++at) {
        bits_[at] = !bits_[at];
      }
    }
  }
  bool Has(uint32_t code) const { return code < kCodes && bits_[code]; }

 private:
  static constexpr uint32_t kCodes = 0x110000;
  std::vector<bool> bits_;
};

// The third number of the range that `code` is in; 0 if none.
class CharacterMap {
 public:
  explicit CharacterMap(const int32_t* ranges) {
    uint32_t at = 0;
    for (; *ranges >= 0; ranges += 3) {
      at += ranges[0] + ranges[1];
      runs_.push_back({at, static_cast<uint32_t>(ranges[1]), ranges[2]});
    }
  }
  int32_t Of(uint32_t code) const {
    const auto run = std::upper_bound(
        runs_.begin(), runs_.end(), code,
        [](uint32_t c, const Run& candidate) { return c < candidate.end; });
    return run != runs_.end() && code >= run->end - run->size ? run->value : 0;
  }

 private:
  struct Run {
    uint32_t end;
    uint32_t size;
    int32_t value;
  };
  std::vector<Run> runs_;
};

}  // namespace

bool IsUtf8(absl::string_view text) {
  return simdjson::validate_utf8(text.data(), text.size());
}

uint32_t NextCharacter(absl::string_view text, size_t* at) {
  const auto byte = [&text, at](size_t i) {
    return static_cast<uint32_t>(static_cast<unsigned char>(text[*at + i]));
  };
  const uint32_t first = byte(0);
  uint32_t code = first;
  size_t bytes = 1;
  if (first >= 0xf0) {
    code = (first & 7) << 18 | (byte(1) & 63) << 12 | (byte(2) & 63) << 6 |
           (byte(3) & 63);
    bytes = 4;
  } else if (first >= 0xe0) {
    code = (first & 15) << 12 | (byte(1) & 63) << 6 | (byte(2) & 63);
    bytes = 3;
  } else if (first >= 0xc0) {
    code = (first & 31) << 6 | (byte(1) & 63);
    bytes = 2;
  }
  *at += bytes;
  return code;
}

uint32_t CharacterAt(absl::string_view text, size_t at) {
  if (at + CharacterBytes(text[at]) > text.size()) return 0xfffd;
  return NextCharacter(text, &at);
}

size_t BeginOfLast(absl::string_view text, size_t end) {
  size_t begin = end - 1;
  while (begin > 0 && end - begin < 4 && IsContinuation(text[begin])) --begin;
  return begin;
}

void AppendCharacter(uint32_t code, std::string* text) {
  utf8proc_uint8_t bytes[4];
  const utf8proc_ssize_t n =
      utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes);
  text->append(reinterpret_cast<const char*>(bytes), n);
}

bool IsSpace(uint32_t code) {
  return code == ' ' || (code >= 9 && code <= 13) || code == 0x85 ||
         code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) ||
         code == 0x2028 || code == 0x2029 || code == 0x202f || code == 0x205f ||
         code == 0x3000;
}

bool IsWord(uint32_t code) {
  static const CharacterSet set(
      kLetters | kMarks |
          Categories(UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NL) |
          Categories(UTF8PROC_CATEGORY_PC, UTF8PROC_CATEGORY_PC),
      kWordDifferences);
  return set.Has(code);
}

bool IsNumber(uint32_t code) {
  static const CharacterSet set(
      Categories(UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NO),
      kNumberDifferences);
  return set.Has(code);
}

bool IsPunctuation(uint32_t code) {
  static const CharacterSet set(
      Categories(UTF8PROC_CATEGORY_PC, UTF8PROC_CATEGORY_PO),
      kPunctuationDifferences);
  return set.Has(code);
}

bool IsCombiningMark(uint32_t code) {
  static const CharacterSet set(kMarks, kCombiningDifferences);
  return set.Has(code);
}

bool IsNonspacingMark(uint32_t code) {
  static const CharacterSet set(
      Categories(UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_MN),
      kNonspacingDifferences);
  return set.Has(code);
}

bool IsBertControl(uint32_t code) {
  static const CharacterSet set(
      Categories(UTF8PROC_CATEGORY_CC, UTF8PROC_CATEGORY_CF) |
          Categories(UTF8PROC_CATEGORY_CO, UTF8PROC_CATEGORY_CO),
      kControlDifferences);
  return set.Has(code);
}

bool IsNotNormalized(uint32_t code) {
  static const CharacterSet set(0, kNotNormalized);
  return set.Has(code);
}

int ScriptOf(uint32_t code) {
  static const CharacterMap map(kScripts);
  return map.Of(code);
}

void AppendLowercase(uint32_t code, std::string* text) {
  static const CharacterMap differences(kLowercase);
  if (code == 0x130) {  // the only one that yields two
    *text += "i\xcc\x87";
    return;
  }
  const int32_t distance = code < 0x80 ? 0 : differences.Of(code);
  AppendCharacter(distance != 0
                      ? code + distance
                      : utf8proc_tolower(static_cast<utf8proc_int32_t>(code)),
                  text);
}

uint32_t ByteToCharacter(int byte) { return Bytes().character[byte]; }

bool CharactersToBytes(absl::string_view token, std::string* bytes) {
  bytes->clear();
  for (size_t at = 0; at < token.size();) {
    const uint32_t code = NextCharacter(token, &at);
    const int byte = code < Bytes().byte.size() ? Bytes().byte[code] : -1;
    if (byte < 0) return false;
    bytes->push_back(static_cast<char>(byte));
  }
  return true;
}

}  // namespace capstan::tokenizer
