// SPDX-License-Identifier: Apache-2.0
#include "datasets/chat/source_file.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "datasets/chat/cached_file.h"

namespace capstan::chat {
namespace {

constexpr absl::string_view kGzip("\x1f\x8b", 2);
constexpr absl::string_view kZstd("\x28\xb5\x2f\xfd", 4);
constexpr absl::string_view kParquet("PAR1", 4);

constexpr size_t kBuffer = 1 << 20;

absl::Status Broken(const std::string& path, absl::string_view why) {
  return absl::DataLossError(absl::StrCat(path, " can't be unpacked: ", why));
}

absl::Status Empty(const std::string& path) {
  return absl::InvalidArgumentError(absl::StrCat(path, " is empty"));
}

// What a file of so many bytes may become. Texts shrink to a third or a tenth,
// rows that are much alike to a hundredth; a file of zeros to a thousandth.
uint64_t MostUnpacked(uint64_t packed) {
  constexpr uint64_t kTimes = 200;
  constexpr uint64_t kAlways = uint64_t{1} << 30;
  return std::max(kAlways, kTimes * packed);
}

// Where unpacked bytes go, up to a limit.
class Unpacked {
 public:
  Unpacked(const std::string& path, uint64_t most, CacheWriter* to)
      : path_(path), most_(most), to_(*to) {}

  absl::Status Write(absl::string_view bytes) {
    bytes_ += bytes.size();
    if (bytes_ <= most_) return to_.Write(bytes);
    return absl::InvalidArgumentError(absl::StrCat(
        path_, " can't be unpacked: it becomes more than ", most_,
        " bytes, the limit for a file of its size; unpack it yourself, and "
        "name the unpacked file, if that is meant"));
  }

 private:
  const std::string& path_;
  const uint64_t most_;
  CacheWriter& to_;
  uint64_t bytes_ = 0;
};

// Decompress the file `from`, with all its members or frames, into `to`. Errors
// name the file: corrupt, truncated, empty, disk full.
absl::Status UnpackGzip(const std::string& from, Unpacked* to) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> in(
      gzopen(from.c_str(), "rb"), gzclose);
  if (in == nullptr) return Broken(from, "it can't be opened");
  gzbuffer(in.get(), kBuffer);
  std::vector<char> buffer(kBuffer);
  bool any = false;
  while (true) {
    const int size = gzread(in.get(), buffer.data(), kBuffer);
    int error = Z_OK;
    const char* const message = gzerror(in.get(), &error);
    // For a truncated file, gzread returns the data before the end, and an
    // error.
    if (size < 0 || error != Z_OK) {
      return Broken(from,
                    error == Z_BUF_ERROR ? "its end is missing" : message);
    }
    if (size == 0) return any ? absl::OkStatus() : Empty(from);
    any = true;
    CAPSTAN_RETURN_IF_ERROR(
        to->Write(absl::string_view(buffer.data(), static_cast<size_t>(size))));
  }
}

absl::Status UnpackZstd(const std::string& from, Unpacked* to) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::shared_ptr<const MappedFile> file,
                           MappedFile::Open(from));
  const std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> context(
      ZSTD_createDCtx(), ZSTD_freeDCtx);
  std::vector<char> buffer(kBuffer);
  ZSTD_inBuffer input = {file->bytes().data(), file->bytes().size(), 0};
  size_t left = 0;  // 0: at the end of a frame
  bool full = false;
  bool any = false;
  while (input.pos < input.size || full) {
    ZSTD_outBuffer output = {buffer.data(), buffer.size(), 0};
    left = ZSTD_decompressStream(context.get(), &output, &input);
    if (ZSTD_isError(left)) return Broken(from, ZSTD_getErrorName(left));
    any = any || output.pos > 0;
    CAPSTAN_RETURN_IF_ERROR(
        to->Write(absl::string_view(buffer.data(), output.pos)));
    full = output.pos == output.size && left != 0;
  }
  if (left != 0) return Broken(from, "its end is missing");
  return any ? absl::OkStatus() : Empty(from);
}

constexpr absl::string_view kByteOrderMark("\xef\xbb\xbf", 3);

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// Bytes at which scanning a value must act, outside of strings and (the second)
// inside.
using Table = std::array<bool, 256>;

Table TableOf(absl::string_view bytes) {
  Table table = {};
  for (char c : bytes) table[static_cast<unsigned char>(c)] = true;
  return table;
}

const Table kOutside = TableOf("\"{}[],\n");
const Table kInString = TableOf("\"\\\n");

}  // namespace

absl::StatusOr<SourceFile> OpenSource(const std::string& path, uint64_t most) {
  SourceFile source;
  source.path = path;
  CAPSTAN_ASSIGN_OR_RETURN(source.file, MappedFile::Open(path));
  const absl::string_view bytes = source.text = source.file->bytes();
  if (absl::StartsWith(bytes, kParquet)) {
    return absl::UnimplementedError(absl::StrCat(
        path,
        " is a Parquet file, which isn't read; convert it to JSON lines, for "
        "instance with Python: import pandas; pandas.read_parquet(\"FILE\")"
        ".to_json(\"FILE.jsonl\", orient=\"records\", lines=True)"));
  }
  const bool gzip = absl::StartsWith(bytes, kGzip);
  if (!gzip && !absl::StartsWith(bytes, kZstd)) return source;
  if (most == 0) most = MostUnpacked(bytes.size());
  CacheKey key;
  CAPSTAN_RETURN_IF_ERROR(key.AddFile(path));
  key.Add("unpacked, with a checksum");
  const auto any = [](absl::string_view) { return absl::OkStatus(); };
  CAPSTAN_ASSIGN_OR_RETURN(
      const CachedFile unpacked,
      OpenCached(path, key.hash(), "json", any, [&](CacheWriter* to) {
        Unpacked limited(path, most, to);
        CAPSTAN_RETURN_IF_ERROR(gzip ? UnpackGzip(path, &limited)
                                     : UnpackZstd(path, &limited));
        return source.file->Check();
      }));
  source.file = unpacked.file;
  source.text = unpacked.contents;
  return source;
}

RowScanner::RowScanner(absl::string_view text) : text_(text) {
  if (absl::StartsWith(text_, kByteOrderMark)) at_ = kByteOrderMark.size();
  const uint64_t begin = at_;
  SkipSpace();
  if (at_ < text_.size() && text_[at_] == '[') {
    ++at_;
    is_list_ = true;
  } else if (at_ < text_.size() && text_[at_] == '{' && EnterDataList()) {
    is_list_ = true;
  } else {
    at_ = begin;
    line_ = 1;
  }
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
    for (const char* row : {"messages", "conversations", "prompt", "completion",
                            "instruction", "question", "user", "text"}) {
      if (key == row) return false;
    }
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
