// SPDX-License-Identifier: Apache-2.0
#include "datasets/tables/tables.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "arrow/array/array_binary.h"
#include "arrow/csv/invalid_row.h"
#include "arrow/csv/options.h"
#include "arrow/csv/reader.h"
#include "arrow/io/file.h"
#include "arrow/io/interfaces.h"
#include "arrow/memory_pool.h"
#include "arrow/record_batch.h"
#include "arrow/result.h"
#include "arrow/type.h"
#include "arrow/util/utf8.h"
#include "datasets/tables/json_rows.h"
#include "parquet/arrow/reader.h"
#include "parquet/file_reader.h"
#include "parquet/properties.h"

namespace capstan {
namespace {

// Rows at a time of Parquet, so that memory is that of few rows.
constexpr int64_t kBatchRows = 256;
// A row of CSV must be shorter than this.
constexpr int32_t kCsvBlock = 8 << 20;
// Arrow's defaults are 100 MB and a million.
constexpr int32_t kMostThriftString = 16 << 20;

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
  arrow::MemoryPool* const pool = arrow::system_memory_pool();
  ARROW_ASSIGN_OR_RAISE(auto file,
                        arrow::io::ReadableFile::Open(job.path, pool));
  parquet::ReaderProperties properties(pool);
  properties.enable_buffered_stream();  // a page at a time, not a row group
  properties.set_thrift_string_size_limit(kMostThriftString);
  properties.set_page_checksum_verification(true);
  parquet::ArrowReaderProperties arrow_properties(/*use_threads=*/false);
  arrow_properties.set_batch_size(kBatchRows);
  arrow_properties.set_pre_buffer(false);
  parquet::arrow::FileReaderBuilder builder;
  ARROW_RETURN_NOT_OK(builder.Open(std::move(file), properties));
  builder.memory_pool(pool)->properties(arrow_properties);
  ARROW_ASSIGN_OR_RAISE(parquet->file, builder.Build());
  ARROW_ASSIGN_OR_RAISE(parquet->rows, parquet->file->GetRecordBatchReader());
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
