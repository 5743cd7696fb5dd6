// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/word_scanner.h"

#include <algorithm>
#include <array>
#include <cstdint>

namespace capstan::tokenizer {
namespace {

enum Kind : uint8_t { kOther, kLetter, kDigit, kSpace, kHigh };

constexpr std::array<uint8_t, 256> Kinds() {
  std::array<uint8_t, 256> kinds{};
  for (int c = 0; c < 256; ++c) {
    if (c >= 0x80) {
      kinds[c] = kHigh;
    } else if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
      kinds[c] = kLetter;
    } else if (c >= '0' && c <= '9') {
      kinds[c] = kDigit;
    } else if (c == ' ' || (c >= '\t' && c <= '\r')) {
      kinds[c] = kSpace;
    } else {
      kinds[c] = kOther;
    }
  }
  return kinds;
}

constexpr std::array<uint8_t, 256> kKinds = Kinds();

Kind KindOf(char c) {
  return static_cast<Kind>(kKinds[static_cast<unsigned char>(c)]);
}

bool IsNewline(char c) { return c == '\r' || c == '\n'; }

// End of the run of `kind` at `p`; null if a non-ASCII character follows, which
// might belong to it.
const char* RunEnd(const char* p, const char* end, Kind kind) {
  while (p < end && KindOf(*p) == kind) ++p;
  return p < end && KindOf(*p) == kHigh ? nullptr : p;
}

size_t Bytes(const char* begin, const char* match_end) {
  return match_end == nullptr ? 0 : match_end - begin;
}

// \s+(?!\S)|\s+ for a run of spaces [begin, run_end).
size_t Spaces(const char* begin, const char* run_end, const char* end) {
  const size_t n = run_end - begin;
  return run_end == end || n == 1 ? n : n - 1;
}

// 's|'t|'re|'ve|'m|'ll|'d; 0 if none matches.
size_t Contraction(const char* p, const char* end, bool any_case) {
  const auto at = [=](int i) {
    if (end - p <= i) return '\0';
    const char c = p[i];
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c;
  };
  switch (at(1)) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return at(2) == 'e' ? 3 : 0;
    case 'l':
      return at(2) == 'l' ? 3 : 0;
    default:
      return 0;
  }
}

size_t Gpt2Word(const char* begin, const char* end) {
  const Kind kind = KindOf(*begin);
  if (kind == kHigh) return 0;
  const char* const next = begin + 1;
  if (kind == kSpace) {
    if (*begin == ' ' && next < end && KindOf(*next) != kSpace) {
      if (KindOf(*next) == kHigh) return 0;
      return Bytes(begin, RunEnd(next, end, KindOf(*next)));
    }
    const char* const run_end = RunEnd(next, end, kSpace);
    return run_end == nullptr ? 0 : Spaces(begin, run_end, end);
  }
  if (*begin == '\'') {
    const size_t n = Contraction(begin, end, /*any_case=*/false);
    if (n > 0) return n;
  }
  return Bytes(begin, RunEnd(next, end, kind));
}

// [^\s\p{L}\p{N}]+[\r\n]* at `p`.
size_t OthersAndNewlines(const char* begin, const char* p, const char* end) {
  p = RunEnd(p, end, kOther);
  if (p == nullptr) return 0;
  while (p < end && IsNewline(*p)) ++p;
  return p - begin;
}

// The expressions of Llama 3 and Qwen 2 at white space.
size_t WordFromSpace(const char* begin, const char* end) {
  const char* const next = begin + 1;
  if (next < end) {
    const Kind kind = KindOf(*next);
    if (kind == kHigh) return 0;
    if (kind == kLetter && !IsNewline(*begin)) {
      return Bytes(begin, RunEnd(next, end, kLetter));
    }
    if (kind == kOther && *begin == ' ') {
      return OthersAndNewlines(begin, next, end);
    }
  }
  const char* const run_end = RunEnd(next, end, kSpace);
  if (run_end == nullptr) return 0;
  for (const char* p = run_end; p > begin; --p) {
    if (IsNewline(p[-1])) return p - begin;  // \s*[\r\n]+
  }
  return Spaces(begin, run_end, end);
}

template <int kDigits>
size_t Llama3Word(const char* begin, const char* end) {
  const Kind kind = KindOf(*begin);
  const char* const next = begin + 1;
  switch (kind) {
    case kHigh:
      return 0;
    case kLetter:
      return Bytes(begin, RunEnd(next, end, kLetter));
    case kDigit: {
      const char* const last =
          begin + std::min<ptrdiff_t>(kDigits, end - begin);
      const char* p = next;
      while (p < last && KindOf(*p) == kDigit) ++p;
      return p < last && KindOf(*p) == kHigh ? 0 : p - begin;
    }
    case kSpace:
      return WordFromSpace(begin, end);
    case kOther:
      break;
  }
  if (next < end) {
    // There are non-ASCII letters, and a non-ASCII s (U+017F).
    if (KindOf(*next) == kHigh) return 0;
    if (*begin == '\'') {
      const size_t n = Contraction(begin, end, /*any_case=*/true);
      if (n > 0) return n;
    }
    if (KindOf(*next) == kLetter) {
      return Bytes(begin, RunEnd(next, end, kLetter));
    }
  }
  return OthersAndNewlines(begin, begin, end);
}

}  // namespace

const char kGpt2Words[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const char kLlama3Words[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
const char kQwen2Words[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

WordScanner FindWordScanner(absl::string_view pattern) {
  if (pattern == kGpt2Words) return Gpt2Word;
  if (pattern == kLlama3Words) return Llama3Word<3>;
  if (pattern == kQwen2Words) return Llama3Word<1>;
  return nullptr;
}

}  // namespace capstan::tokenizer
