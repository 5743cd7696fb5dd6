// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/unicode.h"

#include <simdjson.h>
#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

namespace capstan::tokenizer {
namespace {

constexpr char kReplacement[] = "\xef\xbf\xbd";  // U+FFFD

// Length of the longest proper prefix of a valid character at the start of
// `text`; at least 1. `text` must not begin with a valid character.
size_t MaximalPart(absl::string_view text) {
  const auto byte = [&text](size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0;
  };
  const int first = byte(0);
  const int second = byte(1);
  int low = 0x80;
  int high = 0xbf;
  size_t length = 0;
  if (first >= 0xe0 && first <= 0xef) {
    length = 3;
    if (first == 0xe0) low = 0xa0;
    if (first == 0xed) high = 0x9f;
  } else if (first >= 0xf0 && first <= 0xf4) {
    length = 4;
    if (first == 0xf0) low = 0x90;
    if (first == 0xf4) high = 0x8f;
  }
  if (length == 0 || second < low || second > high) return 1;
  size_t part = 2;
  while (part < length - 1 && byte(part) >= 0x80 && byte(part) <= 0xbf) ++part;
  return part;
}

bool Printable(int byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) ||
         (byte >= 174 && byte <= 255);
}

struct ByteTable {
  std::array<uint32_t, 256> character;
  std::array<int, 324> byte;

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

}  // namespace

bool IsUtf8(absl::string_view text) {
  return simdjson::validate_utf8(text.data(), text.size());
}

std::string ToUtf8(absl::string_view text, Alignment* alignment) {
  std::string valid;
  size_t at = 0;
  while (at < text.size()) {
    utf8proc_int32_t code = 0;
    const utf8proc_ssize_t bytes = utf8proc_iterate(
        reinterpret_cast<const utf8proc_uint8_t*>(text.data() + at),
        static_cast<utf8proc_ssize_t>(text.size() - at), &code);
    if (bytes > 0) {
      valid.append(text.data() + at, bytes);
      alignment->Keep(bytes);
      at += bytes;
      continue;
    }
    const size_t part = MaximalPart(text.substr(at));
    valid += kReplacement;
    alignment->Change(part, sizeof(kReplacement) - 1);
    at += part;
  }
  return valid;
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

void AppendCharacter(uint32_t code, std::string* text) {
  utf8proc_uint8_t bytes[4];
  const utf8proc_ssize_t n =
      utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes);
  text->append(reinterpret_cast<const char*>(bytes), n);
}

void NotePrefix(absl::string_view text, size_t prefix_bytes,
                Alignment* alignment) {
  const size_t first = std::min(CharacterBytes(text[0]), text.size());
  alignment->Change(first, prefix_bytes + first);
  alignment->Keep(text.size() - first);
}

uint32_t ByteToCharacter(int byte) { return Bytes().character[byte]; }

int CharacterToByte(uint32_t code) {
  return code < Bytes().byte.size() ? Bytes().byte[code] : -1;
}

bool CharactersToBytes(absl::string_view token, std::string* bytes) {
  bytes->clear();
  for (size_t at = 0; at < token.size();) {
    const int byte = CharacterToByte(NextCharacter(token, &at));
    if (byte < 0) return false;
    bytes->push_back(static_cast<char>(byte));
  }
  return true;
}

namespace {

int Options(UnicodeForm form) {
  switch (form) {
    case UnicodeForm::kNfc:
      return UTF8PROC_STABLE | UTF8PROC_COMPOSE;
    case UnicodeForm::kNfd:
      return UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
    case UnicodeForm::kNfkc:
      return UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT;
    case UnicodeForm::kNfkd:
      return UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT;
  }
  return 0;
}

// Characters below it are normalized, don't combine with preceding characters,
// and combine only with following characters at or above it.
uint32_t FirstUnstable(UnicodeForm form) {
  switch (form) {
    case UnicodeForm::kNfc:
      return 0x300;
    case UnicodeForm::kNfd:
      return 0xc0;
    default:
      return 0xa0;
  }
}

// Whether a character, or its decomposition, may combine with a preceding one:
// marks, Hangul vowels and final consonants, and compatibility forms of them.
bool MayCombineBackward(uint32_t code) {
  if ((code >= 0x1100 && code <= 0x11ff) ||
      (code >= 0x3130 && code <= 0x318f) ||
      (code >= 0xff9e && code <= 0xffdc)) {
    return true;
  }
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      return true;
    default:
      return false;
  }
}

class Form final : public Normalizer {
 public:
  explicit Form(UnicodeForm form)
      : options_(static_cast<utf8proc_option_t>(Options(form))),
        first_unstable_(FirstUnstable(form)) {}

  bool Apply(absl::string_view text, RegexState*, std::string* out,
             Alignment* alignment) const override {
    std::string made;
    out->clear();
    size_t kept = 0;  // text[0, kept) is in *out
    size_t at = 0;
    bool changed = false;
    Stretch stretch;
    while (NextStretch(text, &at, &stretch)) {
      const absl::string_view old =
          text.substr(stretch.begin, stretch.end - stretch.begin);
      Normalize(old, &made);
      if (made == old) continue;
      changed = true;
      out->append(text.data() + kept, stretch.begin - kept);
      alignment->Keep(stretch.begin - kept);
      AppendClusters(old, out, alignment);
      kept = stretch.end;
    }
    if (!changed) return false;
    out->append(text.data() + kept, text.size() - kept);
    alignment->Keep(text.size() - kept);
    return true;
  }

 private:
  struct Stretch {
    size_t begin;
    size_t end;
  };

  // From *at on, the next run of unstable characters, including the preceding
  // stable one, which a mark may combine with.
  bool NextStretch(absl::string_view text, size_t* at, Stretch* stretch) const {
    size_t last = *at;  // start of the previous character
    while (*at < text.size()) {
      if (static_cast<unsigned char>(text[*at]) < 0x80) {
        last = (*at)++;
        continue;
      }
      size_t next = *at;
      if (NextCharacter(text, &next) < first_unstable_) {
        last = *at;
        *at = next;
        continue;
      }
      stretch->begin = last;
      while (next < text.size()) {
        const size_t begin = next;
        if (NextCharacter(text, &next) < first_unstable_) {
          next = begin;
          break;
        }
      }
      stretch->end = *at = next;
      return true;
    }
    return false;
  }

  // Characters that may combine are normalized together.
  void AppendClusters(absl::string_view text, std::string* out,
                      Alignment* alignment) const {
    std::string made;
    for (size_t at = 0; at < text.size();) {
      const size_t begin = at;
      NextCharacter(text, &at);
      while (at < text.size()) {
        size_t next = at;
        if (!MayCombineBackward(NextCharacter(text, &next))) break;
        at = next;
      }
      const absl::string_view old = text.substr(begin, at - begin);
      Normalize(old, &made);
      *out += made;
      if (made == old) {
        alignment->Keep(old.size());
      } else {
        alignment->Change(old.size(), made.size());
      }
    }
  }

  void Normalize(absl::string_view text, std::string* made) const {
    std::vector<utf8proc_int32_t> codes(text.size() + 1);
    const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
    const auto size = static_cast<utf8proc_ssize_t>(text.size());
    utf8proc_ssize_t n = utf8proc_decompose(
        bytes, size, codes.data(), static_cast<utf8proc_ssize_t>(codes.size()),
        options_);
    if (n > static_cast<utf8proc_ssize_t>(codes.size())) {
      codes.resize(n + 1);
      n = utf8proc_decompose(bytes, size, codes.data(), n + 1, options_);
    }
    n = utf8proc_normalize_utf32(codes.data(), n, options_);
    made->clear();
    for (utf8proc_ssize_t i = 0; i < n; ++i) AppendCharacter(codes[i], made);
  }

  const utf8proc_option_t options_;
  const uint32_t first_unstable_;
};

}  // namespace

std::unique_ptr<Normalizer> NewUnicodeForm(UnicodeForm form) {
  return std::make_unique<Form>(form);
}

}  // namespace capstan::tokenizer
