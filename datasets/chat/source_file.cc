// SPDX-License-Identifier: Apache-2.0
#include "datasets/chat/source_file.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/status.h"
#include "datasets/chat/cached_file.h"
#include "datasets/chat/row.h"
#include "datasets/chat/table_file.h"
#include "datasets/chat/unpack.h"

namespace capstan::chat {
namespace {

constexpr absl::string_view kByteOrderMark("\xef\xbb\xbf", 3);

constexpr size_t kBuffer = 1 << 20;

// What a cached file of unpacked bytes has behind them.
struct Unpacked {
  uint64_t members = 0;
};

// What a name says must be so: else a file whose first byte is damaged would
// be text.
absl::Status CheckName(const std::string& path, Packed packed) {
  const std::string name = absl::AsciiStrToLower(path);
  absl::string_view rest = name;
  const Packed named = ConsumePackedExtension(&rest);
  if (named == Packed::kNot || packed != Packed::kNot) return absl::OkStatus();
  return WithCode(
      absl::DataLossError(absl::StrCat(
          path, " can't be unpacked: it is named as ",
          named == Packed::kGzip ? "gzip" : "zstd",
          " and doesn't begin as such a file; fetch it again, or, if it isn't "
          "packed, name it without ",
          name.substr(rest.size()))),
      "data/damaged");
}

absl::StatusOr<uint64_t> Unpack(const std::string& path, Packed packed,
                                uint64_t most, CacheWriter* to) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<ByteStream> bytes,
                           OpenBytes(path, packed));
  std::vector<char> buffer(kBuffer);
  uint64_t all = 0;
  while (true) {
    CAPSTAN_ASSIGN_OR_RETURN(const size_t size,
                             bytes->Read(buffer.data(), buffer.size()));
    if (size == 0) return bytes->members();
    all += size;
    if (all > most) return TooLarge(path, most);
    CAPSTAN_RETURN_IF_ERROR(to->Write({buffer.data(), size}));
  }
}

// The same of a table.
absl::StatusOr<uint64_t> WriteRows(const std::string& path, Table table,
                                   Packed packed, uint64_t most,
                                   CacheWriter* to) {
  uint64_t size = 0;
  CAPSTAN_ASSIGN_OR_RETURN(
      const uint64_t members,
      TableRows(path, table, packed, most, [&](absl::string_view lines) {
        size += lines.size();
        return to->Write(lines);
      }));
  if (size == 0) {
    return WithCode(
        absl::InvalidArgumentError(absl::StrCat(path, " has no rows")),
        "data/no-rows");
  }
  return members;
}

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// Bytes at which scanning a value must act, outside of strings and (the second)
// inside.
using ByteSet = std::array<bool, 256>;

ByteSet SetOf(absl::string_view bytes) {
  ByteSet set = {};
  for (char c : bytes) set[static_cast<unsigned char>(c)] = true;
  return set;
}

const ByteSet kOutside = SetOf("\"{}[],\n");
const ByteSet kInString = SetOf("\"\\\n");

}  // namespace

std::string SourceFile::PlaceOf(uint64_t line) const {
  return absl::StrCat(path, is_table ? ": row " : ":", line);
}

absl::StatusOr<SourceFile> OpenSource(const std::string& path, uint64_t most) {
  SourceFile source;
  source.path = path;
  CAPSTAN_ASSIGN_OR_RETURN(source.file, MappedFile::Open(path));
  const absl::string_view bytes = source.text = source.file->bytes();
  source.bytes = bytes.size();
  const Packed packed = PackedAs(bytes);
  const Table table = TableOf(path, bytes);
  source.is_table = table != Table::kNot;
  if (table != Table::kParquet) {
    CAPSTAN_RETURN_IF_ERROR(CheckName(path, packed));
  }
  if (packed == Packed::kNot && !source.is_table) return source;
  if (most == 0) most = MostUnpacked(bytes.size());
  CacheKey key;
  CAPSTAN_RETURN_IF_ERROR(key.AddFile(path));
  key.Add(source.is_table ? "rows of a table, 3" : "unpacked, all members");
  const auto has_end = [](absl::string_view contents) {
    return contents.size() >= sizeof(Unpacked)
               ? absl::OkStatus()
               : absl::DataLossError("its end is missing");
  };
  const auto make = [&](CacheWriter* to) -> absl::Status {
    Unpacked end;
    CAPSTAN_ASSIGN_OR_RETURN(
        end.members, source.is_table ? WriteRows(path, table, packed, most, to)
                                     : Unpack(path, packed, most, to));
    CAPSTAN_RETURN_IF_ERROR(source.file->Check());
    return to->Write(BytesOf(&end, 1));
  };
  CAPSTAN_ASSIGN_OR_RETURN(const CachedFile cached,
                           OpenCached(path, key.hash(), "json", has_end, make));
  Unpacked end;
  const size_t size = cached.contents.size() - sizeof(end);
  std::memcpy(&end, cached.contents.data() + size, sizeof(end));
  source.file = cached.file;
  source.text = cached.contents.substr(0, size);
  source.members = end.members;
  return source;
}

RowScanner::RowScanner(absl::string_view text) : text_(text) {
  if (absl::StartsWith(text_, kByteOrderMark)) at_ = kByteOrderMark.size();
  const uint64_t begin = at_;
  SkipSpace();
  if (at_ < text_.size() && text_[at_] == '[') {
    ++at_;
    SkipSpace();
    // A text: no list of rows but the first row, ["question", {"answer": ..}].
    is_list_ = at_ >= text_.size() || text_[at_] != '"';
  } else if (at_ < text_.size() && text_[at_] == '{') {
    is_list_ = EnterDataList();
  }
  if (is_list_) return;
  at_ = begin;
  line_ = 1;
}

absl::Status RowScanner::Next(uint64_t bytes, std::vector<RowPlace>* rows) {
  rows->clear();
  if (is_list_) return NextElements(bytes, rows);
  NextLines(bytes, rows);
  return absl::OkStatus();
}

void RowScanner::NextLines(uint64_t bytes, std::vector<RowPlace>* rows) {
  const uint64_t stop = at_ + bytes;
  while (at_ < text_.size() && (at_ < stop || rows->empty())) {
    const void* const newline =
        std::memchr(text_.data() + at_, '\n', text_.size() - at_);
    const uint64_t end = newline == nullptr
                             ? text_.size()
                             : static_cast<const char*>(newline) - text_.data();
    uint64_t first = at_;
    uint64_t last = end;
    while (first < last && IsSpace(text_[first])) ++first;
    while (last > first && IsSpace(text_[last - 1])) --last;
    if (last > first) rows->push_back({first, last - first, line_});
    at_ = end + 1;
    ++line_;
  }
}

absl::Status RowScanner::NextElements(uint64_t bytes,
                                      std::vector<RowPlace>* rows) {
  const uint64_t stop = at_ + bytes;
  while (!is_closed_ && (at_ < stop || rows->empty())) {
    SkipSpace();
    if (at_ >= text_.size()) return Wrong("the list isn't closed");
    if (text_[at_] == ']') {
      ++at_;
      is_closed_ = true;
      break;
    }
    if (!is_first_) {
      if (text_[at_] != ',') return Wrong("a comma is missing before this");
      ++at_;
      SkipSpace();
    }
    is_first_ = false;
    RowPlace place{at_, 0, line_};
    SkipValue();
    place.bytes = at_ - place.offset;
    if (place.bytes == 0) return Wrong("an element of the list is missing");
    rows->push_back(place);
  }
  return absl::OkStatus();
}

void RowScanner::SkipSpace() {
  while (at_ < text_.size() && IsSpace(text_[at_])) {
    if (text_[at_] == '\n') ++line_;
    ++at_;
  }
}

// Skips the value at at_, or to the text's end. Errors within it are found when
// it is parsed.
void RowScanner::SkipValue() {
  int64_t depth = 0;
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (!kOutside[static_cast<unsigned char>(c)]) {
      ++at_;
      continue;
    }
    if (c == '"') {
      ReadString();
      if (depth == 0) return;
      continue;
    }
    if (depth == 0 && (c == ',' || c == ']' || c == '}')) return;
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    if (c == '\n') ++line_;
    ++at_;
    if (depth == 0 && (c == '}' || c == ']')) return;
  }
}

// Returns the contents of the string at at_ and skips it.
absl::string_view RowScanner::ReadString() {
  const uint64_t begin = ++at_;
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (!kInString[static_cast<unsigned char>(c)]) {
      ++at_;
      continue;
    }
    if (c == '"') return text_.substr(begin, at_++ - begin);
    if (c == '\n') ++line_;
    at_ += c == '\\' ? 2 : 1;
  }
  at_ = text_.size();
  return text_.substr(begin);
}

// At an object: enters the list in "data", if that comes before any key of a
// row.
bool RowScanner::EnterDataList() {
  ++at_;
  while (true) {
    SkipSpace();
    if (at_ >= text_.size() || text_[at_] != '"') return false;
    const absl::string_view key = ReadString();
    if (IsRowKey(key)) return false;
    SkipSpace();
    if (at_ >= text_.size() || text_[at_] != ':') return false;
    ++at_;
    SkipSpace();
    if (key == "data" && at_ < text_.size() && text_[at_] == '[') {
      ++at_;
      return true;
    }
    SkipValue();
    SkipSpace();
    if (at_ >= text_.size() || text_[at_] != ',') return false;
    ++at_;
  }
}

absl::Status RowScanner::Wrong(absl::string_view what) const {
  return absl::InvalidArgumentError(
      absl::StrCat(line_, ": broken JSON: ", what));
}

uint64_t LineOf(absl::string_view text, uint64_t offset) {
  return 1 + std::count(text.begin(), text.begin() + offset, '\n');
}

}  // namespace capstan::chat
