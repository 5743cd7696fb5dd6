// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/unicode.h"

#include <simdjson.h>
#include <utf8proc.h>

#include <array>

namespace capstan::tokenizer {
namespace {

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

}  // namespace capstan::tokenizer
