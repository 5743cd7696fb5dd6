// SPDX-License-Identifier: Apache-2.0
#include "datasets/chat/row_index.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "datasets/chat/cache_file.h"
#include "datasets/chat/index_builder.h"

namespace capstan {
namespace chat {
namespace {

constexpr uint64_t kMagic = 0x32574f5250414343ULL;  // "CCAPROW2"
// Raised when rows of the same bytes become other tokens than before.
constexpr uint64_t kRowsVersion = 2;

struct Header {
  uint64_t magic = kMagic;
  uint64_t key = 0;
  RowIndex::Facts facts;
};

template <typename T>
absl::string_view BytesOf(const T* values, size_t size) {
  return {reinterpret_cast<const char*>(values), size * sizeof(T)};
}

absl::Status Write(const SourceFile& source, const IndexBuilder::Options& how,
                   uint64_t key, HiddenFile* file) {
  Header header;
  header.key = key;
  CAPSTAN_RETURN_IF_ERROR(file->Write(BytesOf(&header, 1)));
  IndexBuilder builder(source, how);
  CAPSTAN_ASSIGN_OR_RETURN(
      header.facts, builder.Run([file](absl::Span<const IndexedRow> rows) {
        return file->Write(BytesOf(rows.data(), rows.size()));
      }));
  CAPSTAN_RETURN_IF_ERROR(file->Rewind());
  return file->Write(BytesOf(&header, 1));
}

// The header, if the file is whole and of this key; else null.
const Header* HeaderOf(const MappedFile& file, uint64_t key) {
  const absl::string_view bytes = file.bytes();
  if (bytes.size() < sizeof(Header)) return nullptr;
  const auto* const header = reinterpret_cast<const Header*>(bytes.data());
  const bool whole =
      header->magic == kMagic && header->key == key &&
      (bytes.size() - sizeof(Header)) % sizeof(IndexedRow) == 0 &&
      (bytes.size() - sizeof(Header)) / sizeof(IndexedRow) ==
          header->facts.rows;
  return whole ? header : nullptr;
}

}  // namespace

absl::StatusOr<RowIndex> RowIndex::Open(const SourceFile& source, Kind kind,
                                        BadRows bad_rows,
                                        const RowEncoder& encoder,
                                        uint64_t tokenizer_hash) {
  CacheKey key;
  CAPSTAN_RETURN_IF_ERROR(key.AddFile(source.path));
  key.Add(tokenizer_hash)
      .Add(encoder.Settings())
      .Add(kRowsVersion)
      .Add(Kind_Name(kind))
      .Add(BadRows_Name(bad_rows));
  RowIndex index;
  index.key_ = key.hash();
  const auto is_valid = [&](const std::string& path) {
    const auto file = MappedFile::Open(path);
    return file.ok() && HeaderOf(**file, index.key_) != nullptr;
  };
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::string path,
      CachedFile(
          source.path, index.key_, "rows", is_valid, [&](HiddenFile* to) {
            return Write(source, {kind, bad_rows, &encoder}, index.key_, to);
          }));
  CAPSTAN_ASSIGN_OR_RETURN(index.file_, MappedFile::Open(path));
  const Header* const header = HeaderOf(*index.file_, index.key_);
  if (header == nullptr) {
    return absl::DataLossError(
        absl::StrCat(path, " changed while it was opened: start again"));
  }
  index.facts_ = &header->facts;
  index.rows_ = absl::MakeConstSpan(
      reinterpret_cast<const IndexedRow*>(header + 1), header->facts.rows);
  if (index.rows_.empty()) {
    const Facts& facts = *index.facts_;
    return absl::InvalidArgumentError(absl::StrCat(
        source.path,
        " has no row to train on: rows without a token to train "
        "on within max_length: ",
        facts.untrained, "; bad rows: ", facts.bad,
        facts.bad > 0 ? absl::StrCat(", the first is ", facts.first_bad)
                      : std::string()));
  }
  if (index.rows_.size() > std::numeric_limits<uint32_t>::max()) {
    return absl::UnimplementedError(absl::StrCat(
        source.path, " has more than 4,294,967,295 rows: cut it in pieces"));
  }
  return index;
}

}  // namespace chat
}  // namespace capstan
