// SPDX-License-Identifier: Apache-2.0
#include <simdjson.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/error_code.h"
#include "base/json_document.h"
#include "base/status.h"
#include "datasets/stream/texts.h"

namespace capstan::stream {
namespace {

constexpr int64_t kMoreBytes = 64 << 10;  // of a row beyond its cell
constexpr size_t kChunk = 64 << 10;       // unpacked at a time
constexpr size_t kMostStreams = 64;       // open packed files
// Of a shard, to name the line of an error.
constexpr int64_t kMostCounted = int64_t{1} << 30;
constexpr absl::string_view kByteOrderMark("\xef\xbb\xbf", 3);

bool IsBlank(absl::string_view line) {
  return line.find_first_not_of(" \t\r") == absl::string_view::npos;
}

Document OfLine(absl::string_view line, int64_t place,
                const std::string& field) {
  Document document;
  document.place = place;
  absl::StatusOr<std::string> text = TextOfJson(line, field);
  document.bad = text.status();
  if (text.ok()) document.text = *std::move(text);
  return document;
}

// The rows of a packed file, one after the other, by cells. A row is of the
// cell in which the packed file was when its first byte came out.
class PackedRows {
 public:
  static absl::StatusOr<std::unique_ptr<PackedRows>> Open(const Shard& shard) {
    CAPSTAN_RETURN_IF_ERROR(CheckUnchanged(shard));
    CAPSTAN_RETURN_IF_ERROR(Ensure(shard, 0, shard.bytes));
    CAPSTAN_ASSIGN_OR_RETURN(auto bytes,
                             chat::OpenBytes(shard.file, shard.packed));
    return std::unique_ptr<PackedRows>(
        new PackedRows(shard.cells, std::move(bytes)));
  }

  int64_t next_cell() const { return next_cell_; }

  // Those of next_cell(), which goes up. `take` may be null.
  template <typename Take>
  absl::Status NextCell(const Take& take) {
    const int64_t cell = next_cell_;
    while (true) {
      const size_t newline = text_.find('\n', searched_);
      searched_ = newline == std::string::npos ? text_.size() : newline;
      if (begin_ < text_.size() && CellAt(begin_) > cell) break;
      if (newline == std::string::npos && !at_end_) {
        CAPSTAN_RETURN_IF_ERROR(ReadMore());
        continue;
      }
      if (begin_ >= text_.size()) break;  // the end
      const size_t end = std::min(newline, text_.size());
      take(absl::string_view(text_).substr(begin_, end - begin_), rows_);
      ++rows_;
      begin_ = searched_ = end + 1;
    }
    ++next_cell_;
    return absl::OkStatus();
  }

 private:
  PackedRows(int64_t cells, std::unique_ptr<chat::ByteStream> bytes)
      : cells_(cells), bytes_(std::move(bytes)) {}

  int64_t CellAt(size_t at) const {
    auto chunk = chunks_.upper_bound(static_cast<int64_t>(at) + dropped_);
    --chunk;
    return std::min(chunk->second, cells_ - 1);
  }

  absl::Status ReadMore() {
    if (begin_ > kChunk) Drop();
    const size_t size = text_.size();
    const int64_t at = dropped_ + static_cast<int64_t>(size);
    text_.resize(size + kChunk);
    CAPSTAN_ASSIGN_OR_RETURN(const size_t read,
                             bytes_->Read(&text_[size], kChunk));
    text_.resize(size + read);
    at_end_ = read == 0;
    if (static_cast<int64_t>(size - begin_) > 2 * kMostDocument) {
      // Of a row that is too long anyway only what ends it is wanted. Where
      // rows behind it are is counted without what is left out, by whoever
      // reads the file.
      text_.erase(size, std::min(text_.find('\n', size), text_.size()) - size);
    }
    if (read > 0) {
      chunks_[at] = static_cast<int64_t>(bytes_->consumed()) / kPackedCellBytes;
    }
    return absl::OkStatus();
  }

  // What has been taken.
  void Drop() {
    text_.erase(0, begin_);
    dropped_ += static_cast<int64_t>(begin_);
    searched_ -= std::min(searched_, begin_);
    begin_ = 0;
    auto kept = chunks_.upper_bound(dropped_);
    chunks_.erase(chunks_.begin(), --kept);
  }

  const int64_t cells_;
  const std::unique_ptr<chat::ByteStream> bytes_;
  std::string text_;
  size_t begin_ = 0;     // in text_: the next row
  size_t searched_ = 0;  // there is no line's end before this
  int64_t dropped_ = 0;  // bytes before text_
  bool at_end_ = false;
  std::map<int64_t, int64_t> chunks_;  // begin of what was read: the cell
  int64_t next_cell_ = 0;
  int64_t rows_ = 0;
};

class JsonTexts final : public Texts {
 public:
  explicit JsonTexts(const std::string& field) : field_(field) {}

  absl::StatusOr<std::vector<Document>> Read(const Shard& shard,
                                             int64_t cell) override {
    return shard.packed == chat::Packed::kNot ? ReadPlain(shard, cell)
                                              : ReadPacked(shard, cell);
  }

  // A byte of a plain file, a row of a packed one.
  std::string PlaceOf(const Shard& shard, int64_t place) const override {
    if (shard.packed != chat::Packed::kNot) {
      return absl::StrCat(shard.path, ":", place + 1);
    }
    const int64_t line = place < kMostCounted ? LineAt(shard, place) : 0;
    return line > 0 ? absl::StrCat(shard.path, ":", line)
                    : absl::StrCat(shard.path, ", byte ", place);
  }

 private:
  static int64_t LineAt(const Shard& shard, int64_t place) {
    const auto file = ShardFile::Open(shard);
    if (!file.ok()) return 0;
    int64_t line = 1;
    std::string bytes;
    for (int64_t at = 0; at < place; at += kCellBytes) {
      bytes.resize(std::min(kCellBytes, place - at));
      if (!(*file)->Read(at, bytes.size(), &bytes[0]).ok()) return 0;
      line += std::count(bytes.begin(), bytes.end(), '\n');
    }
    return line;
  }

  absl::StatusOr<std::vector<Document>> ReadPlain(const Shard& shard,
                                                  int64_t cell) const {
    CAPSTAN_ASSIGN_OR_RETURN(const auto file, ShardFile::Open(shard));
    const int64_t begin = cell * kCellBytes;
    const int64_t end = std::min(begin + kCellBytes, shard.bytes);
    // With the byte before, which tells whether a row begins here.
    const int64_t from = std::max<int64_t>(begin - 1, 0);
    std::string bytes(static_cast<size_t>(end - from), '\0');
    CAPSTAN_RETURN_IF_ERROR(file->Read(from, end - from, &bytes[0]));
    size_t at = 0;
    if (cell > 0) {
      const size_t newline = bytes.find('\n');
      if (newline == std::string::npos) return std::vector<Document>();
      at = newline + 1;
    } else if (absl::StartsWith(bytes, kByteOrderMark)) {
      at = kByteOrderMark.size();
    }
    const auto cell_end = static_cast<size_t>(end - from);
    std::vector<Document> documents;
    int64_t read_to = end;
    while (at < cell_end) {
      size_t searched = at;
      size_t newline = bytes.find('\n', searched);
      while (newline == std::string::npos && read_to < shard.bytes &&
             static_cast<int64_t>(bytes.size() - at) <= 2 * kMostDocument) {
        searched = bytes.size();
        const int64_t more =
            std::min(std::max<int64_t>(kMoreBytes, bytes.size() / 2),
                     shard.bytes - read_to);
        bytes.resize(bytes.size() + static_cast<size_t>(more));
        CAPSTAN_RETURN_IF_ERROR(file->Read(read_to, more, &bytes[searched]));
        read_to += more;
        newline = bytes.find('\n', searched);
      }
      const size_t row_end = std::min(newline, bytes.size());
      const absl::string_view line =
          absl::string_view(bytes).substr(at, row_end - at);
      if (!IsBlank(line)) {
        documents.push_back(
            OfLine(line, from + static_cast<int64_t>(at), field_));
      }
      at = row_end + 1;
    }
    return documents;
  }

  absl::StatusOr<std::vector<Document>> ReadPacked(const Shard& shard,
                                                   int64_t cell) {
    CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<PackedRows> rows,
                             StreamBefore(shard, cell));
    const auto pass = [](absl::string_view, int64_t) {};
    while (rows->next_cell() < cell) {
      CAPSTAN_RETURN_IF_ERROR(Named(shard, rows->NextCell(pass)));
    }
    std::vector<Document> documents;
    CAPSTAN_RETURN_IF_ERROR(
        Named(shard, rows->NextCell([&](absl::string_view line, int64_t row) {
          if (row == 0) absl::ConsumePrefix(&line, kByteOrderMark);
          if (!IsBlank(line)) documents.push_back(OfLine(line, row, field_));
        })));
    const std::lock_guard<std::mutex> lock(mutex_);
    streams_.emplace_back(shard.path, std::move(rows));
    if (streams_.size() > kMostStreams) streams_.erase(streams_.begin());
    return documents;
  }

  static absl::Status Named(const Shard& shard, const absl::Status& status) {
    if (status.ok() || absl::StrContains(status.message(), shard.path)) {
      return WithCode(status, "data/damaged");
    }
    return Annotate(status, shard.path);
  }

  // One that is open before the cell, the nearest, or a new one.
  absl::StatusOr<std::unique_ptr<PackedRows>> StreamBefore(const Shard& shard,
                                                           int64_t cell) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      auto best = streams_.end();
      for (auto it = streams_.begin(); it != streams_.end(); ++it) {
        if (it->first != shard.path || it->second->next_cell() > cell) continue;
        if (best == streams_.end() ||
            it->second->next_cell() > best->second->next_cell()) {
          best = it;
        }
      }
      if (best != streams_.end()) {
        std::unique_ptr<PackedRows> rows = std::move(best->second);
        streams_.erase(best);
        return rows;
      }
    }
    return PackedRows::Open(shard);
  }

  const std::string field_;
  std::mutex mutex_;
  // The one that was used last is the last.
  std::vector<std::pair<std::string, std::unique_ptr<PackedRows>>> streams_;
};

}  // namespace

absl::Status TooLong(int64_t bytes) {
  return absl::InvalidArgumentError(absl::StrCat(
      "has ", bytes, " bytes, and a document may have ", kMostDocument));
}

absl::Status CheckText(absl::string_view text) {
  if (static_cast<int64_t>(text.size()) > kMostDocument) {
    return TooLong(static_cast<int64_t>(text.size()));
  }
  return simdjson::validate_utf8(text.data(), text.size())
             ? absl::OkStatus()
             : absl::InvalidArgumentError("has a text that isn't UTF-8");
}

absl::StatusOr<std::string> TextOfJson(absl::string_view json,
                                       const std::string& field) {
  if (static_cast<int64_t>(json.size()) > kMostDocument) {
    return TooLong(static_cast<int64_t>(json.size()));
  }
  thread_local simdjson::dom::parser parser;
  simdjson::dom::element row;
  // Copied, as no more than the row may be read.
  const simdjson::error_code error =
      ParseJsonDocument(json, json.size(), &parser, &row);
  if (error == simdjson::UTF8_ERROR) {
    return absl::InvalidArgumentError("has a text that isn't UTF-8");
  }
  if (error != simdjson::SUCCESS) {
    return absl::InvalidArgumentError(
        absl::StrCat("isn't JSON: ", simdjson::error_message(error)));
  }
  simdjson::dom::object object;
  if (row.get(object) != simdjson::SUCCESS) {
    return absl::InvalidArgumentError(
        "isn't a JSON object: each line must be one (a JSON list isn't read "
        "as a shard)");
  }
  simdjson::dom::element value;
  if (object.at_key(field).get(value) != simdjson::SUCCESS) {
    return absl::InvalidArgumentError(absl::StrCat(
        "has no \"", field, "\": set text_field to the key that has the text"));
  }
  std::string_view text;
  if (value.get(text) != simdjson::SUCCESS) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", field, "\" isn't a text"));
  }
  return std::string(text);
}

std::unique_ptr<Texts> NewJsonTexts(const std::string& field) {
  return std::make_unique<JsonTexts>(field);
}

}  // namespace capstan::stream
