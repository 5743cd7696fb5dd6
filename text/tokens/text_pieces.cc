// SPDX-License-Identifier: Apache-2.0
#include "text/tokens/text_pieces.h"

#include <algorithm>
#include <string>
#include <thread>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/in_order.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan::text {
namespace {

// Bytes on either side of a cut.
constexpr size_t kSurroundings = 2048;
// Lines tried before the piece grows.
constexpr int kTries = 16;

// Start of the first line after `from` that doesn't begin with white space.
size_t NextLine(absl::string_view text, size_t from) {
  size_t at = text.find('\n', from);
  while (at != absl::string_view::npos && at + 1 < text.size()) {
    if (!absl::ascii_isspace(text[at + 1])) return at + 1;
    at = text.find('\n', at + 1);
  }
  return absl::string_view::npos;
}

bool CanCut(const Tokenizer& tokenizer, absl::string_view text, size_t at) {
  const size_t begin = CharacterBegin(text, at - std::min(at, kSurroundings));
  const size_t end =
      CharacterBegin(text, std::min(text.size(), at + kSurroundings));
  // A copy: see EncodePiece.
  const std::string around(text.substr(begin, end - begin));
  const absl::string_view both = around;
  std::vector<int64_t> apart = tokenizer.Encode(both.substr(0, at - begin));
  const std::vector<int64_t> right = tokenizer.Encode(both.substr(at - begin));
  apart.insert(apart.end(), right.begin(), right.end());
  return apart == tokenizer.Encode(both);
}

}  // namespace

size_t CharacterBegin(absl::string_view text, size_t at) {
  while (at < text.size() &&
         (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) {
    ++at;
  }
  return at;
}

std::vector<absl::string_view> CutText(const Tokenizer& tokenizer,
                                       absl::string_view text,
                                       size_t piece_bytes) {
  std::vector<absl::string_view> pieces;
  size_t begin = 0;
  size_t from = piece_bytes;
  while (from < text.size()) {
    size_t cut = NextLine(text, from);
    int tries = 1;
    while (cut != absl::string_view::npos && !CanCut(tokenizer, text, cut)) {
      cut = tries++ < kTries ? NextLine(text, cut) : absl::string_view::npos;
    }
    if (cut == absl::string_view::npos) {
      from += piece_bytes;
      continue;
    }
    pieces.push_back(text.substr(begin, cut - begin));
    begin = cut;
    from = cut + piece_bytes;
  }
  pieces.push_back(text.substr(begin));
  return pieces;
}

absl::StatusOr<std::vector<int64_t>> EncodePiece(const Tokenizer& tokenizer,
                                                 absl::string_view piece,
                                                 const MappedFile& file) {
  const std::string copy(piece);
  const int64_t unknown = tokenizer.FirstUnknown(copy);
  if (unknown < 0) return tokenizer.Encode(copy);
  const absl::string_view before =
      file.bytes().substr(0, piece.data() - file.bytes().data() + unknown);
  return absl::InvalidArgumentError(absl::StrCat(
      file.path(), ":", 1 + std::count(before.begin(), before.end(), '\n'), " ",
      UnknownAt(copy, unknown).message()));
}

absl::Status AppendTokens(const Tokenizer& tokenizer, absl::string_view text,
                          const MappedFile& file, std::vector<uint32_t>* ids) {
  if (text.empty()) return absl::OkStatus();
  const std::vector<absl::string_view> pieces =
      CutText(tokenizer, text, /*piece_bytes=*/1 << 20);
  return InOrder<std::vector<int64_t>>(
      static_cast<int>(std::thread::hardware_concurrency()),
      static_cast<int64_t>(pieces.size()),
      [&](int64_t i) { return EncodePiece(tokenizer, pieces[i], file); },
      [ids](const std::vector<int64_t>& made) {
        ids->insert(ids->end(), made.begin(), made.end());
        return absl::OkStatus();
      });
}

}  // namespace capstan::text
