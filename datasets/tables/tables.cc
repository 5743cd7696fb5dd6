// SPDX-License-Identifier: Apache-2.0
#include "datasets/tables/tables.h"

#include <algorithm>
#include <charconv>
#include <cmath>
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
#include "arrow/csv/invalid_row.h"
#include "arrow/csv/options.h"
#include "arrow/csv/reader.h"
#include "arrow/io/interfaces.h"
#include "arrow/memory_pool.h"
#include "arrow/record_batch.h"
#include "arrow/result.h"
#include "arrow/scalar.h"
#include "arrow/status.h"
#include "arrow/type.h"
#include "arrow/util/checked_cast.h"
#include "arrow/util/utf8.h"
#include "datasets/tables/parquet_file.h"
#include "parquet/arrow/reader.h"
#include "parquet/file_reader.h"

namespace capstan {
namespace {

using arrow::internal::checked_cast;

// Rows at a time of Parquet, so that memory is that of few rows.
constexpr int64_t kBatchRows = 256;
// A row of CSV must be shorter than this.
constexpr int32_t kCsvBlock = 8 << 20;
// simdjson, which parses the rows, goes no deeper either.
constexpr int kMostDepth = 64;

// A last line of our own: it comes back as a row, unless a quote before it
// isn't closed, which Arrow doesn't mind.
constexpr std::string_view kEndLine = "\n\x01\n";
constexpr std::string_view kEndRow = "\x01";

// The caller's text as Arrow reads it, and kEndLine.
class CallerStream final : public arrow::io::InputStream {
 public:
  explicit CallerStream(const TableJob& job) : job_(job) {}

  arrow::Status Close() override {
    closed_ = true;
    return arrow::Status::OK();
  }
  bool closed() const override { return closed_; }
  arrow::Result<int64_t> Tell() const override { return read_; }
  // Fills `out`, unless the text ends.
  arrow::Result<int64_t> Read(int64_t most, void* out) override {
    int64_t all = 0;
    while (all < most) {
      char* const to = static_cast<char*>(out) + all;
      int64_t size = at_end_ ? 0 : job_.read(job_.context, to, most - all);
      if (size < 0) return arrow::Status::IOError("it can't be read");
      at_end_ = size == 0;
      if (at_end_) {
        size = static_cast<int64_t>(
            end_line_.copy(to, static_cast<size_t>(most - all)));
        end_line_.remove_prefix(static_cast<size_t>(size));
      }
      if (size == 0) break;
      all += size;
    }
    read_ += all;
    return all;
  }
  arrow::Result<std::shared_ptr<arrow::Buffer>> Read(int64_t most) override {
    ARROW_ASSIGN_OR_RAISE(auto buffer, arrow::AllocateResizableBuffer(most));
    ARROW_ASSIGN_OR_RAISE(const int64_t size,
                          Read(most, buffer->mutable_data()));
    ARROW_RETURN_NOT_OK(buffer->Resize(size));
    return std::shared_ptr<arrow::Buffer>(std::move(buffer));
  }

 private:
  const TableJob& job_;
  std::string_view end_line_ = kEndLine;
  int64_t read_ = 0;
  bool at_end_ = false;
  bool closed_ = false;
};

using Reader = std::shared_ptr<arrow::RecordBatchReader>;

// `*ended` becomes true when kEndRow comes, unless there is one column.
arrow::Result<Reader> OpenCsv(const TableJob& job, bool* ended) {
  auto read = arrow::csv::ReadOptions::Defaults();
  read.use_threads = false;  // only then errors know their row
  read.block_size = kCsvBlock;
  auto parse = arrow::csv::ParseOptions::Defaults();
  parse.delimiter = job.delimiter;
  parse.newlines_in_values = true;
  parse.invalid_row_handler = [ended](const arrow::csv::InvalidRow& row) {
    if (row.text != kEndRow) return arrow::csv::InvalidRowResult::Error;
    *ended = true;
    return arrow::csv::InvalidRowResult::Skip;
  };
  auto convert = arrow::csv::ConvertOptions::Defaults();
  convert.default_column_type = arrow::utf8();
  ARROW_ASSIGN_OR_RAISE(
      std::shared_ptr<arrow::RecordBatchReader> reader,
      arrow::csv::StreamingReader::Make(
          arrow::io::IOContext(arrow::system_memory_pool()),
          std::make_shared<CallerStream>(job), read, parse, convert));
  return reader;
}

// A Parquet file with its reader, which must not outlive it.
struct Parquet {
  std::unique_ptr<parquet::arrow::FileReader> file;
  std::unique_ptr<arrow::RecordBatchReader> rows;
};

arrow::Status OpenParquet(const TableJob& job, Parquet* parquet) {
  ARROW_ASSIGN_OR_RAISE(parquet->file, OpenParquetFile(job.path, kBatchRows));
  ARROW_ASSIGN_OR_RAISE(parquet->rows, parquet->file->GetRecordBatchReader());
  return arrow::Status::OK();
}

void AppendEscaped(unsigned char c, std::string* out) {
  constexpr char kHex[] = "0123456789abcdef";
  switch (c) {
    case '"':
      *out += "\\\"";
      return;
    case '\\':
      *out += "\\\\";
      return;
    case '\n':
      *out += "\\n";
      return;
    case '\r':
      *out += "\\r";
      return;
    case '\t':
      *out += "\\t";
      return;
    default:
      *out += "\\u00";
      *out += kHex[c >> 4];
      *out += kHex[c & 15];
  }
}

void AppendText(std::string_view text, std::string* out) {
  *out += '"';
  size_t done = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x20 && c != '"' && c != '\\') continue;
    out->append(text, done, i - done);
    AppendEscaped(c, out);
    done = i + 1;
  }
  out->append(text, done);
  *out += '"';
}

template <typename T>
void AppendNumber(T value, std::string* out) {
  if constexpr (std::is_floating_point_v<T>) {
    if (!std::isfinite(value)) {  // which JSON doesn't have
      *out += "null";
      return;
    }
  }
  char digits[64];
  const auto end = std::to_chars(digits, digits + sizeof(digits), value).ptr;
  out->append(digits, end);
}

arrow::Status Append(const arrow::Array& array, int64_t i, int depth,
                     std::string* out);

arrow::Status AppendList(const arrow::Array& values, int64_t begin, int64_t end,
                         int depth, std::string* out) {
  *out += '[';
  for (int64_t i = begin; i < end; ++i) {
    if (i > begin) *out += ',';
    ARROW_RETURN_NOT_OK(Append(values, i, depth, out));
  }
  *out += ']';
  return arrow::Status::OK();
}

template <typename List>
arrow::Status AppendListAt(const arrow::Array& array, int64_t i, int depth,
                           std::string* out) {
  const auto& list = checked_cast<const List&>(array);
  const int64_t begin = list.value_offset(i);
  return AppendList(*list.values(), begin, begin + list.value_length(i), depth,
                    out);
}

// `value` may be null, or bytes that aren't text: then nothing is appended.
bool HasValue(const arrow::Array& array, int64_t i) {
  if (array.IsNull(i)) return false;
  std::string_view bytes;
  switch (array.type_id()) {
    case arrow::Type::NA:
      return false;
    case arrow::Type::BINARY:
      bytes = checked_cast<const arrow::BinaryArray&>(array).GetView(i);
      break;
    case arrow::Type::LARGE_BINARY:
      bytes = checked_cast<const arrow::LargeBinaryArray&>(array).GetView(i);
      break;
    case arrow::Type::FIXED_SIZE_BINARY:
      return false;
    default:
      return true;
  }
  return arrow::util::ValidateUTF8(bytes);
}

arrow::Status AppendStruct(const arrow::StructArray& array, int64_t i,
                           int depth, std::string* out) {
  *out += '{';
  bool first = true;
  for (int field = 0; field < array.num_fields(); ++field) {
    const arrow::Array& values = *array.field(field);
    if (!HasValue(values, i)) continue;
    if (!first) *out += ',';
    first = false;
    AppendText(array.struct_type()->field(field)->name(), out);
    *out += ':';
    ARROW_RETURN_NOT_OK(Append(values, i, depth, out));
  }
  *out += '}';
  return arrow::Status::OK();
}

// A map with keys that are texts is an object, as in JSON.
arrow::Status AppendMap(const arrow::MapArray& array, int64_t i, int depth,
                        std::string* out) {
  const arrow::Array& keys = *array.keys();
  const int64_t begin = array.value_offset(i);
  const int64_t end = begin + array.value_length(i);
  *out += '{';
  for (int64_t entry = begin; entry < end; ++entry) {
    if (entry > begin) *out += ',';
    ARROW_ASSIGN_OR_RAISE(const auto key, keys.GetScalar(entry));
    AppendText(key->ToString(), out);
    *out += ':';
    ARROW_RETURN_NOT_OK(Append(*array.items(), entry, depth, out));
  }
  *out += '}';
  return arrow::Status::OK();
}

template <typename Array>
arrow::Status AppendNumberAt(const arrow::Array& array, int64_t i,
                             std::string* out) {
  AppendNumber(checked_cast<const Array&>(array).Value(i), out);
  return arrow::Status::OK();
}

template <typename Array>
arrow::Status AppendTextAt(const arrow::Array& array, int64_t i,
                           std::string* out) {
  AppendText(checked_cast<const Array&>(array).GetView(i), out);
  return arrow::Status::OK();
}

arrow::Status AppendNested(const arrow::Array& array, int64_t i, int depth,
                           std::string* out) {
  if (depth > kMostDepth) {
    return arrow::Status::Invalid("lists and structs are nested more than ",
                                  kMostDepth, " deep");
  }
  switch (array.type_id()) {
    case arrow::Type::STRUCT:
      return AppendStruct(checked_cast<const arrow::StructArray&>(array), i,
                          depth, out);
    case arrow::Type::MAP:
      return AppendMap(checked_cast<const arrow::MapArray&>(array), i, depth,
                       out);
    case arrow::Type::LIST:
      return AppendListAt<arrow::ListArray>(array, i, depth, out);
    case arrow::Type::LARGE_LIST:
      return AppendListAt<arrow::LargeListArray>(array, i, depth, out);
    default:
      return AppendListAt<arrow::FixedSizeListArray>(array, i, depth, out);
  }
}

arrow::Status Append(const arrow::Array& array, int64_t i, int depth,
                     std::string* out) {
  using arrow::Type;
  if (!HasValue(array, i)) {
    *out += "null";
    return arrow::Status::OK();
  }
  switch (array.type_id()) {
    case Type::STRING:
      return AppendTextAt<arrow::StringArray>(array, i, out);
    case Type::LARGE_STRING:
      return AppendTextAt<arrow::LargeStringArray>(array, i, out);
    case Type::STRING_VIEW:
      return AppendTextAt<arrow::StringViewArray>(array, i, out);
    case Type::BINARY:
      return AppendTextAt<arrow::BinaryArray>(array, i, out);
    case Type::LARGE_BINARY:
      return AppendTextAt<arrow::LargeBinaryArray>(array, i, out);
    case Type::BOOL:
      *out += checked_cast<const arrow::BooleanArray&>(array).Value(i)
                  ? "true"
                  : "false";
      return arrow::Status::OK();
    case Type::INT8:
      return AppendNumberAt<arrow::Int8Array>(array, i, out);
    case Type::INT16:
      return AppendNumberAt<arrow::Int16Array>(array, i, out);
    case Type::INT32:
      return AppendNumberAt<arrow::Int32Array>(array, i, out);
    case Type::INT64:
      return AppendNumberAt<arrow::Int64Array>(array, i, out);
    case Type::UINT8:
      return AppendNumberAt<arrow::UInt8Array>(array, i, out);
    case Type::UINT16:
      return AppendNumberAt<arrow::UInt16Array>(array, i, out);
    case Type::UINT32:
      return AppendNumberAt<arrow::UInt32Array>(array, i, out);
    case Type::UINT64:
      return AppendNumberAt<arrow::UInt64Array>(array, i, out);
    case Type::FLOAT:
      return AppendNumberAt<arrow::FloatArray>(array, i, out);
    case Type::DOUBLE:
      return AppendNumberAt<arrow::DoubleArray>(array, i, out);
    case Type::DICTIONARY: {
      const auto& dictionary =
          checked_cast<const arrow::DictionaryArray&>(array);
      return Append(*dictionary.dictionary(), dictionary.GetValueIndex(i),
                    depth + 1, out);
    }
    case Type::STRUCT:
    case Type::MAP:
    case Type::LIST:
    case Type::LARGE_LIST:
    case Type::FIXED_SIZE_LIST:
      return AppendNested(array, i, depth + 1, out);
    default: {
      ARROW_ASSIGN_OR_RAISE(const auto value, array.GetScalar(i));
      AppendText(value->ToString(), out);
      return arrow::Status::OK();
    }
  }
}

// Appends each row of `batch` as a line of JSON (see tables.h).
arrow::Status AppendRows(const arrow::RecordBatch& batch, std::string* out) {
  std::vector<std::string> keys;
  for (const auto& field : batch.schema()->fields()) {
    AppendText(field->name(), &keys.emplace_back());
    keys.back() += ':';
  }
  for (int64_t row = 0; row < batch.num_rows(); ++row) {
    *out += '{';
    bool first = true;
    for (int column = 0; column < batch.num_columns(); ++column) {
      const arrow::Array& values = *batch.column(column);
      if (!HasValue(values, row)) continue;
      if (!first) *out += ',';
      first = false;
      *out += keys[column];
      ARROW_RETURN_NOT_OK(Append(values, row, 0, out));
    }
    *out += "}\n";
  }
  return arrow::Status::OK();
}

// The batch without a last row that is kEndRow alone.
std::shared_ptr<arrow::RecordBatch> WithoutEnd(
    const std::shared_ptr<arrow::RecordBatch>& batch, bool* ended) {
  const int64_t last = batch->num_rows() - 1;
  if (batch->num_columns() != 1 || last < 0 ||
      static_cast<const arrow::StringArray&>(*batch->column(0)).GetView(last) !=
          kEndRow) {
    return batch;
  }
  *ended = true;
  return batch->Slice(0, last);
}

// ended: of CSV, see OpenCsv; null for Parquet.
arrow::Status WriteAll(const TableJob& job, arrow::RecordBatchReader* reader,
                       bool* ended) {
  std::string lines;
  int64_t row = 0;
  while (true) {
    std::shared_ptr<arrow::RecordBatch> batch;
    const arrow::Status read = reader->ReadNext(&batch);
    if (!read.ok()) {
      return read.WithMessage(read.message(), " (after row ", row, ")");
    }
    if (batch == nullptr) return arrow::Status::OK();
    // What a damaged file claims must not lead out of bounds, nor do offsets
    // and indices.
    const arrow::Status valid = batch->ValidateFull();
    if (!valid.ok()) {
      return valid.WithMessage(valid.message(), " (after row ", row, ")");
    }
    if (ended != nullptr) batch = WithoutEnd(batch, ended);
    lines.clear();
    // CSV's batches are a block's.
    for (int64_t at = 0; at < batch->num_rows(); at += kBatchRows) {
      ARROW_RETURN_NOT_OK(AppendRows(*batch->Slice(at, kBatchRows), &lines));
      if (!job.write(job.context, lines.data(), lines.size())) {
        return arrow::Status::Cancelled("stopped");
      }
      lines.clear();
    }
    row += batch->num_rows();
  }
}

arrow::Status Convert(const TableJob& job) {
  if (job.delimiter != 0) {
    bool ended = false;
    ARROW_ASSIGN_OR_RAISE(const Reader reader, OpenCsv(job, &ended));
    ARROW_RETURN_NOT_OK(WriteAll(job, reader.get(), &ended));
    return ended ? arrow::Status::OK()
                 : arrow::Status::Invalid(
                       "a quote isn't closed, so that its last field goes on "
                       "to the end of the file");
  }
  Parquet parquet;
  ARROW_RETURN_NOT_OK(OpenParquet(job, &parquet));
  return WriteAll(job, parquet.rows.get(), nullptr);
}

}  // namespace
}  // namespace capstan

extern "C" __attribute__((visibility("default"))) bool capstan_table_to_json(
    const capstan::TableJob* job, char* error, size_t room) {
  std::string why;
  try {
    arrow::util::InitializeUTF8();
    if (job->size != sizeof(capstan::TableJob)) {
      why = "libcapstan_tables.so is of another build";
    } else {
      const arrow::Status status = capstan::Convert(*job);
      if (status.ok()) return true;
      why = status.message();
    }
  } catch (const std::bad_alloc&) {
    why = "it needs too much memory";
  } catch (const std::exception& e) {
    why = e.what();
  }
  if (room > 0) {
    const size_t size = std::min(why.size(), room - 1);
    std::memcpy(error, why.data(), size);
    error[size] = 0;
  }
  return false;
}
