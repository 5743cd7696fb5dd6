// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "datasets/chat/source_file.h"

namespace capstan {
namespace chat {
namespace {

constexpr absl::string_view kByteOrderMark("\xef\xbb\xbf", 3);

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// Bytes at which a walk over a value has something to do, outside of strings
// and (the second) within them.
using Table = std::array<bool, 256>;

Table TableOf(absl::string_view bytes) {
  Table table = {};
  for (char c : bytes) table[static_cast<unsigned char>(c)] = true;
  return table;
}

const Table kOutside = TableOf("\"{}[],\n");
const Table kInString = TableOf("\"\\\n");

}  // namespace

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

// To behind the value at at_, or the text's end. What is wrong within it is
// found when it is parsed.
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

// What is between the quotes of the string at at_; goes behind it.
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

// At an object: into the list that is its "data", if that comes before any key
// of a row.
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

}  // namespace chat
}  // namespace capstan
