// SPDX-License-Identifier: Apache-2.0
#include "datasets/tables/text_column.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arrow/array.h"
#include "arrow/array/array_binary.h"
#include "arrow/memory_pool.h"
#include "arrow/record_batch.h"
#include "arrow/result.h"
#include "arrow/status.h"
#include "arrow/type.h"
#include "arrow/util/checked_cast.h"
#include "datasets/tables/parquet_file.h"
#include "parquet/arrow/reader.h"
#include "parquet/file_reader.h"
#include "parquet/metadata.h"
#include "parquet/size_statistics.h"

namespace capstan {
namespace {

using arrow::internal::checked_cast;

// Rows at a time, so that memory is that of few rows: fewer where they are
// long.
constexpr int64_t kBatchRows = 128;
constexpr int64_t kBatchBytes = 16 << 20;
// What a footer may claim of a row group.
constexpr int64_t kMostBytes = int64_t{1} << 48;

struct Column {
  std::unique_ptr<parquet::arrow::FileReader> file;
  std::vector<int> leaves;  // the column's, of which there is one
  std::vector<int64_t> group_begins;
  std::vector<int64_t> group_bytes;
  int64_t row_count = 0;
  int64_t most_rows = kBatchRows;
  // At row `next`: what is left of `batch`, then what `rows` has of the group.
  std::unique_ptr<arrow::RecordBatchReader> rows;
  std::shared_ptr<arrow::RecordBatch> batch;
  size_t group = 0;
  int64_t batch_rows = 0;
  int64_t next = -1;

  int64_t GroupEnd(size_t i) const {
    return i + 1 < group_begins.size() ? group_begins[i + 1] : row_count;
  }
};

// Of the texts of a row group, unpacked. A dictionary has each text once, so
// that the pages' size tells little; newer writers tell that of the texts.
int64_t TextBytes(const parquet::RowGroupMetaData& group, int leaf) {
  const auto chunk = group.ColumnChunk(leaf);
  int64_t bytes = chunk->total_uncompressed_size();
  const auto sizes = chunk->size_statistics();
  if (sizes != nullptr && sizes->unencoded_byte_array_data_bytes.has_value()) {
    bytes = std::max(bytes, *sizes->unencoded_byte_array_data_bytes);
  }
  return std::clamp<int64_t>(bytes, 0, kMostBytes);
}

arrow::Status Open(const char* path, const char* name, int64_t* rows,
                   int64_t* bytes, Column* column) {
  ARROW_ASSIGN_OR_RAISE(column->file, OpenParquetFile(path, kBatchRows));
  const auto metadata = column->file->parquet_reader()->metadata();
  const int leaf = metadata->schema()->ColumnIndex(name);
  if (leaf < 0) {
    std::string names;
    for (int i = 0; i < metadata->num_columns(); ++i) {
      if (i > 0) names += ", ";
      names += metadata->schema()->Column(i)->path()->ToDotString();
    }
    return arrow::Status::Invalid("it has no column \"", name, "\", only ",
                                  names.substr(0, 300));
  }
  if (metadata->schema()->Column(leaf)->physical_type() !=
          parquet::Type::BYTE_ARRAY ||
      metadata->schema()->Column(leaf)->max_repetition_level() > 0) {
    return arrow::Status::Invalid("its column \"", name, "\" isn't of texts");
  }
  column->leaves = {leaf};
  *rows = 0;
  *bytes = 0;
  for (int i = 0; i < metadata->num_row_groups(); ++i) {
    column->group_begins.push_back(*rows);
    const auto group = metadata->RowGroup(i);
    const int64_t here = group->num_rows();
    if (here < 0) return arrow::Status::Invalid("its row group ", i, " is bad");
    *rows += here;
    column->group_bytes.push_back(TextBytes(*group, leaf));
    *bytes = std::min(kMostBytes, *bytes + column->group_bytes.back());
  }
  column->row_count = *rows;
  if (*rows != metadata->num_rows()) {
    return arrow::Status::Invalid("its row groups have ", *rows,
                                  " rows, and its footer says ",
                                  metadata->num_rows());
  }
  return arrow::Status::OK();
}

// Makes a group's first row the next.
arrow::Status OpenGroup(size_t group, Column* column) {
  column->next = -1;
  column->batch.reset();
  column->rows.reset();  // its memory goes before the next one's comes
  const int64_t begin = column->group_begins[group];
  const int64_t of_row = column->group_bytes[group] /
                         std::max<int64_t>(1, column->GroupEnd(group) - begin);
  column->batch_rows = std::clamp<int64_t>(
      kBatchBytes / std::max<int64_t>(1, of_row), 1, column->most_rows);
  column->file->set_batch_size(column->batch_rows);
  // One alone: a batch that goes on in the next group would read what a caller
  // that has asked for the place of its rows hasn't fetched.
  ARROW_ASSIGN_OR_RAISE(column->rows,
                        column->file->GetRecordBatchReader(
                            {static_cast<int>(group)}, column->leaves));
  column->group = group;
  column->next = begin;
  return arrow::Status::OK();
}

arrow::Status ReadBatch(Column* column) {
  try {
    ARROW_RETURN_NOT_OK(column->rows->ReadNext(&column->batch));
  } catch (const std::bad_alloc&) {
    return arrow::Status::OutOfMemory(kTooMuchMemory);
  }
  if (column->batch == nullptr ||
      column->batch->num_rows() >
          column->GroupEnd(column->group) - column->next) {
    return arrow::Status::Invalid("it ends before its last row");
  }
  // What a damaged file claims must not lead out of bounds (see TextAt). Not
  // ValidateFull, which refuses all rows for one that isn't UTF-8.
  return column->batch->Validate();
}

arrow::Status Skip(int64_t first, Column* column);

arrow::Status Next(Column* column) {
  while (column->next >= column->GroupEnd(column->group)) {
    if (column->group + 1 == column->group_begins.size()) {
      return arrow::Status::Invalid("it ends before its last row");
    }
    ARROW_RETURN_NOT_OK(OpenGroup(column->group + 1, column));
  }
  const arrow::Status read = ReadBatch(column);
  const bool too_large = read.IsOutOfMemory() || read.IsCapacityError();
  if (!too_large) return read;
  if (column->batch_rows == 1) {
    return arrow::Status::OutOfMemory(kTooMuchMemory);
  }
  // Rows that are much longer than the mean.
  const int64_t row = column->next;
  column->most_rows = 1;
  ARROW_RETURN_NOT_OK(OpenGroup(column->group, column));
  ARROW_RETURN_NOT_OK(Skip(row, column));
  return ReadBatch(column);
}

arrow::Status Skip(int64_t first, Column* column) {
  while (column->next < first) {
    if (column->batch == nullptr || column->batch->num_rows() == 0) {
      ARROW_RETURN_NOT_OK(Next(column));
    }
    const int64_t skip =
        std::min(first - column->next, column->batch->num_rows());
    column->batch = column->batch->Slice(skip);
    column->next += skip;
  }
  return arrow::Status::OK();
}

// Makes row `first` the next.
arrow::Status Seek(int64_t first, Column* column) {
  if (column->next == first) return arrow::Status::OK();
  const auto& begins = column->group_begins;
  // Not behind the next row of a later group: groups may be large.
  const auto group = std::upper_bound(begins.begin(), begins.end(), first) - 1;
  if (column->next < 0 || first < column->next || *group > column->next) {
    ARROW_RETURN_NOT_OK(
        OpenGroup(static_cast<size_t>(group - begins.begin()), column));
  }
  return Skip(first, column);
}

template <typename Array>
arrow::Result<std::string_view> ViewAt(const arrow::Array& array, int64_t i) {
  const auto& texts = checked_cast<const Array&>(array);
  const int64_t begin = texts.value_offset(i);
  const int64_t end = texts.value_offset(i + 1);
  const int64_t bytes =
      texts.value_data() == nullptr ? 0 : texts.value_data()->size();
  if (begin < 0 || end < begin || end > bytes) {
    return arrow::Status::Invalid("a text lies outside of its page");
  }
  return texts.GetView(i);
}

arrow::Result<std::string_view> TextAt(const arrow::Array& array, int64_t i) {
  switch (array.type_id()) {
    case arrow::Type::STRING:
    case arrow::Type::BINARY:
      return ViewAt<arrow::BinaryArray>(array, i);
    case arrow::Type::LARGE_STRING:
    case arrow::Type::LARGE_BINARY:
      return ViewAt<arrow::LargeBinaryArray>(array, i);
    case arrow::Type::DICTIONARY: {
      const auto& indexed = checked_cast<const arrow::DictionaryArray&>(array);
      ARROW_RETURN_NOT_OK(array.ValidateFull());
      return TextAt(*indexed.dictionary(), indexed.GetValueIndex(i));
    }
    default:
      return arrow::Status::Invalid("its column is of ",
                                    array.type()->ToString(), ", not of texts");
  }
}

arrow::Status Read(int64_t first, int64_t count, void* context,
                   bool (*take)(void*, const char*, size_t), Column* column) {
  ARROW_RETURN_NOT_OK(Seek(first, column));
  for (int64_t row = 0; row < count;) {
    if (column->batch == nullptr || column->batch->num_rows() == 0) {
      ARROW_RETURN_NOT_OK(Next(column));
    }
    const arrow::Array& values = *column->batch->column(0);
    const int64_t there = std::min(count - row, values.length());
    int64_t here = 0;
    bool more = true;
    for (; here < there; ++here) {
      const int64_t i = here;
      std::string_view text;
      if (!values.IsNull(i)) {
        ARROW_ASSIGN_OR_RAISE(text, TextAt(values, i));
        if (text.data() == nullptr) text = "";
      }
      more =
          take(context, values.IsNull(i) ? nullptr : text.data(), text.size());
      if (!more) break;
    }
    column->batch = column->batch->Slice(here);
    column->next += here;
    row += here;
    if (!more) break;
  }
  return arrow::Status::OK();
}

void Tell(const std::string& why, char* error, size_t room) {
  if (room == 0) return;
  const size_t size = std::min(why.size(), room - 1);
  std::memcpy(error, why.data(), size);
  error[size] = 0;
}

template <typename Call>
bool Caught(const Call& call, char* error, size_t room) {
  try {
    const arrow::Status status = call();
    if (status.ok()) return true;
    Tell(status.IsOutOfMemory() ? kTooMuchMemory : status.message(), error,
         room);
  } catch (const std::bad_alloc&) {
    Tell(kTooMuchMemory, error, room);
  } catch (const std::exception& e) {
    Tell(e.what(), error, room);
  }
  return false;
}

void* OpenColumn(const char* path, const char* name, int64_t* rows,
                 int64_t* bytes, char* error, size_t room) {
  auto column = std::make_unique<Column>();
  const bool ok = Caught(
      [&] { return Open(path, name, rows, bytes, column.get()); }, error, room);
  return ok ? column.release() : nullptr;
}

bool ReadColumn(void* opened, int64_t first, int64_t count, void* context,
                bool (*take)(void*, const char*, size_t), char* error,
                size_t room) {
  auto* const column = static_cast<Column*>(opened);
  const bool ok = Caught(
      [&] { return Read(first, count, context, take, column); }, error, room);
  if (!ok) column->next = -1;
  return ok;
}

void PlaceColumn(void* opened, int64_t first, int64_t count, int64_t* begin,
                 int64_t* end) {
  const auto* const column = static_cast<const Column*>(opened);
  *begin = *end = -1;
  const auto& begins = column->group_begins;
  const bool ok = Caught(
      [&] {
        const auto metadata = column->file->parquet_reader()->metadata();
        for (size_t i = 0; i < begins.size(); ++i) {
          const auto group = metadata->RowGroup(static_cast<int>(i));
          if (begins[i] >= first + count ||
              begins[i] + group->num_rows() <= first) {
            continue;
          }
          const auto chunk = group->ColumnChunk(column->leaves[0]);
          int64_t at = chunk->data_page_offset();
          if (chunk->has_dictionary_page() &&
              chunk->dictionary_page_offset() > 0) {
            at = std::min(at, chunk->dictionary_page_offset());
          }
          *begin = *begin < 0 ? at : std::min(*begin, at);
          *end = std::max(*end, at + chunk->total_compressed_size());
        }
        return arrow::Status::OK();
      },
      nullptr, 0);
  if (!ok) *begin = *end = -1;
}

void CloseColumn(void* opened) { delete static_cast<Column*>(opened); }

}  // namespace
}  // namespace capstan

extern "C" __attribute__((visibility("default"))) const capstan::TextColumnApi*
capstan_text_column() {
  static const capstan::TextColumnApi api = {
      sizeof(capstan::TextColumnApi), &capstan::OpenColumn,
      &capstan::ReadColumn, &capstan::PlaceColumn, &capstan::CloseColumn};
  return &api;
}
