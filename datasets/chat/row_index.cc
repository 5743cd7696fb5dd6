// SPDX-License-Identifier: Apache-2.0
#include "datasets/chat/row_index.h"

#include <algorithm>
#include <cstring>
#include <iostream>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/error_code.h"
#include "base/files.h"
#include "base/status.h"
#include "datasets/chat/cached_file.h"
#include "datasets/chat/data_paths.h"
#include "datasets/chat/map_rows.h"
#include "plugins/sdk/dataset.h"

namespace capstan::chat {
namespace {

// Incremented when the same rows yield different tokens than before, or the
// index has another form.
constexpr uint64_t kRowsVersion = 7;
// Of an error: a row's role or keys can be of any size.
constexpr size_t kMostMessageBytes = 1000;

constexpr double kReportSeconds = 5.0;

void Add(const RowIndex::Facts& from, RowIndex::Facts* to) {
  to->rows += from.rows;
  to->untrained += from.untrained;
  to->cut += from.cut;
  to->chats += from.chats;
  to->tools_as_text += from.tools_as_text;
  to->tokens += from.tokens;
  to->longest = std::max(to->longest, from.longest);
  if (to->bad == 0) {
    std::memcpy(to->first_bad, from.first_bad, sizeof(to->first_bad));
  }
  to->bad += from.bad;
}

void KeepTokens(const TokenRow& row, std::vector<uint32_t>* to) {
  for (size_t i = 0; i < row.ids.size(); ++i) {
    const bool trained = row.labels[i] != kIgnoredTarget;
    to->push_back(static_cast<uint32_t>(row.ids[i]) |
                  (trained ? 0 : kUntrained));
  }
}

absl::Status AddRow(const SourceFile& source, const IndexOptions& options,
                    const RowPlace& place, IndexedRows* chunk) {
  thread_local RowReader reader;
  const absl::string_view json = source.text.substr(place.offset, place.bytes);
  CAPSTAN_RETURN_IF_ERROR(reader.Read(json, options.kind, *options.encoder));
  RowIndex::Facts& facts = chunk->facts;
  if (reader.left_out()) {
    ++facts.untrained;
    return absl::OkStatus();
  }
  const uint64_t count = reader.length();
  ++facts.rows;
  facts.cut += reader.was_cut() ? 1 : 0;
  facts.chats += reader.row.is_text ? 0 : 1;
  facts.tools_as_text += reader.rendered.tools_as_text ? 1 : 0;
  facts.tokens += count;
  facts.longest = std::max(facts.longest, count);
  chunk->rows.push_back({place.offset, HashOf(json), chunk->tokens.size(),
                         static_cast<uint32_t>(place.bytes),
                         static_cast<uint32_t>(count)});
  if (options.keeps_tokens) KeepTokens(reader.tokens, &chunk->tokens);
  return absl::OkStatus();
}

absl::StatusOr<IndexedRows> Index(const SourceFile& source,
                                  const IndexOptions& options,
                                  const RowPlaces& places) {
  IndexedRows chunk;
  for (const RowPlace& place : places.rows) {
    chunk.end = place.offset + place.bytes;
    const absl::Status status = AddRow(source, options, place, &chunk);
    if (status.ok()) continue;
    std::string message =
        absl::StrCat(source.PlaceOf(place.line), ": ", status.message());
    if (message.size() > kMostMessageBytes) {
      message.resize(kMostMessageBytes);
      message += "..";
    }
    // A problem of the config isn't one of a single row.
    if (options.bad_rows == ERROR || !absl::IsInvalidArgument(status)) {
      return WithMessage(status, message);
    }
    if (chunk.facts.bad++ == 0) {
      message.copy(chunk.facts.first_bad, sizeof(chunk.facts.first_bad) - 1);
    }
  }
  if (places.end.ok()) return chunk;
  return absl::InvalidArgumentError(
      absl::StrCat(source.path, ":", places.end.message()));
}

// Reports progress, for files that take long.
class Progress {
 public:
  explicit Progress(const SourceFile& source) : source_(source) {}

  // `end`: how many bytes are done.
  void Report(uint64_t end) {
    const double now = MonotonicSeconds();
    if (now - reported_ < kReportSeconds) return;
    reported_ = now;
    const double done =
        static_cast<double>(end) / static_cast<double>(source_.text.size());
    std::cerr << absl::StrCat(
        "capstan.chat: indexing ", source_.path, ", ",
        static_cast<int>(100 * done), " %, ",
        static_cast<int>((now - start_) * (1 - done) / std::max(done, 1e-6)),
        " s left (once: the index is kept)\n");
  }

 private:
  const SourceFile& source_;
  const double start_ = MonotonicSeconds();
  double reported_ = start_;
};

// The rows follow the tokens at a multiple of 8 bytes.
uint64_t TokenBytes(uint64_t tokens) {
  return (tokens + tokens % 2) * sizeof(uint32_t);
}

absl::Status Write(const SourceFile& source, const IndexOptions& options,
                   CacheWriter* file) {
  std::vector<IndexedRow> rows;
  uint64_t tokens = 0;
  const auto sink = [&](const IndexedRows& chunk) {
    for (IndexedRow row : chunk.rows) {
      row.first_token += tokens;
      rows.push_back(row);
    }
    tokens += chunk.tokens.size();
    return file->Write(BytesOf(chunk.tokens.data(), chunk.tokens.size()));
  };
  CAPSTAN_ASSIGN_OR_RETURN(const RowIndex::Facts facts,
                           IndexRows(source, options, sink));
  CAPSTAN_RETURN_IF_ERROR(source.file->Check());
  constexpr uint32_t kNone = 0;
  CAPSTAN_RETURN_IF_ERROR(file->Write(BytesOf(&kNone, tokens % 2)));
  CAPSTAN_RETURN_IF_ERROR(file->Write(BytesOf(rows.data(), rows.size())));
  return file->Write(BytesOf(&facts, 1));
}

}  // namespace

absl::StatusOr<RowIndex> RowIndex::Open(const SourceFile& source,
                                        const IndexOptions& options,
                                        uint64_t tokenizer_hash) {
  CacheKey key;
  CAPSTAN_RETURN_IF_ERROR(key.AddFile(source.path));
  key.Add(tokenizer_hash)
      .Add(options.encoder->Settings())
      .Add(kRowsVersion)
      .Add(Kind_Name(options.kind))
      .Add(BadRows_Name(options.bad_rows))
      .Add(options.keeps_tokens ? "tokens" : "");
  RowIndex index;
  CAPSTAN_ASSIGN_OR_RETURN(
      CachedFile file,
      OpenCached(
          source.path, key.hash(), "rows",
          [&](absl::string_view contents) {
            return index.Take(contents, source.text.size(), options);
          },
          [&](CacheWriter* to) { return Write(source, options, to); }));
  index.file_ = std::move(file.file);
  if (index.rows_.empty()) {
    const Facts& facts = index.facts_;
    return WithCode(
        absl::InvalidArgumentError(absl::StrCat(
            source.path,
            " has no row to train on: rows without a token to train "
            "on within max_length (",
            options.encoder->max_length(), "): ", facts.untrained,
            "; bad rows: ", facts.bad,
            facts.bad > 0 ? absl::StrCat(", the first is ", facts.first_bad)
                          : std::string())),
        "data/no-rows");
  }
  return index;
}

// Checks what a reader relies on: whoever can write the file can make its
// checksum fit.
absl::Status RowIndex::Take(absl::string_view contents, uint64_t text_bytes,
                            const IndexOptions& options) {
  if (contents.size() < sizeof(facts_)) {
    return absl::DataLossError("its end is missing");
  }
  const size_t bytes = contents.size() - sizeof(facts_);
  std::memcpy(&facts_, contents.data() + bytes, sizeof(facts_));
  facts_.first_bad[sizeof(facts_.first_bad) - 1] = 0;
  const uint64_t kept = options.keeps_tokens ? facts_.tokens : 0;
  // Each alone first, so that no sum overflows.
  if (kept > bytes || facts_.rows > bytes ||
      TokenBytes(kept) + facts_.rows * sizeof(IndexedRow) != bytes) {
    return absl::DataLossError("it has another number of rows");
  }
  tokens_ = absl::MakeConstSpan(
      reinterpret_cast<const uint32_t*>(contents.data()), kept);
  rows_ = absl::MakeConstSpan(
      reinterpret_cast<const IndexedRow*>(contents.data() + TokenBytes(kept)),
      facts_.rows);
  const auto max_length = static_cast<uint64_t>(options.encoder->max_length());
  for (const IndexedRow& row : rows_) {
    if (row.offset > text_bytes || row.bytes > text_bytes - row.offset ||
        row.tokens < 1 || row.tokens > max_length ||
        (options.keeps_tokens && TokensOf(row).empty())) {
      return absl::DataLossError("it has a row that can't be");
    }
  }
  return absl::OkStatus();
}

absl::Span<const uint32_t> RowIndex::TokensOf(const IndexedRow& row) const {
  const uint64_t begin = row.first_token, count = row.tokens;
  if (begin > tokens_.size() || count > tokens_.size() - begin) return {};
  return tokens_.subspan(begin, count);
}

absl::StatusOr<RowIndex::Facts> IndexRows(
    const SourceFile& source, const IndexOptions& options,
    const std::function<absl::Status(const IndexedRows&)>& sink) {
  RowIndex::Facts facts;
  Progress progress(source);
  const auto take = [&](const IndexedRows& chunk) {
    Add(chunk.facts, &facts);
    progress.Report(chunk.end);
    return sink(chunk);
  };
  CAPSTAN_RETURN_IF_ERROR(MapRows<IndexedRows>(
      source, options.chunk_bytes,
      [&](const RowPlaces& places) { return Index(source, options, places); },
      take));
  return facts;
}

absl::StatusOr<SourceRows> SourceRows::Open(const std::string& path,
                                            const IndexOptions& options,
                                            uint64_t tokenizer_hash) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<std::string> paths, FilesOf(path));
  SourceRows rows;
  size_t end = 0;
  for (const std::string& name : paths) {
    File file;
    CAPSTAN_ASSIGN_OR_RETURN(file.file, OpenSource(name));
    CAPSTAN_ASSIGN_OR_RETURN(
        RowIndex index, RowIndex::Open(file.file, options, tokenizer_hash));
    file.index = std::make_unique<RowIndex>(std::move(index));
    end += file.index->rows().size();
    file.end = end;
    rows.files_.push_back(std::move(file));
  }
  if (end > std::numeric_limits<uint32_t>::max()) {
    return absl::UnimplementedError(absl::StrCat(
        path, " has more than 4,294,967,295 rows: make it several sources"));
  }
  return rows;
}

SourceRows::Place SourceRows::At(size_t row) const {
  const auto file =
      files_.size() == 1
          ? files_.begin()
          : std::upper_bound(files_.begin(), files_.end(), row,
                             [](size_t r, const File& f) { return r < f.end; });
  const absl::Span<const IndexedRow> rows = file->index->rows();
  return {&*file, rows[row - (file->end - rows.size())]};
}

bool SourceRows::has_chats() const {
  return std::any_of(files_.begin(), files_.end(), [](const File& file) {
    return file.index->facts().chats > 0;
  });
}

absl::Status SourceRows::Check() const {
  constexpr size_t kFew = 8;  // a stat each
  if (files_.size() > kFew) return MappedFile::CheckAll();
  for (const File& file : files_) {
    CAPSTAN_RETURN_IF_ERROR(file.index->Check());
  }
  return absl::OkStatus();
}

}  // namespace capstan::chat
