// SPDX-License-Identifier: Apache-2.0
#include "datasets/tables/parquet_file.h"

#include <utility>

#include "arrow/io/file.h"
#include "arrow/memory_pool.h"
#include "arrow/status.h"
#include "parquet/properties.h"

namespace capstan {
namespace {

// Arrow's default is 100 MB.
constexpr int32_t kMostThriftString = 16 << 20;

}  // namespace

arrow::Result<std::unique_ptr<parquet::arrow::FileReader>> OpenParquetFile(
    const std::string& path, int64_t batch_rows) {
  arrow::MemoryPool* const pool = arrow::system_memory_pool();
  ARROW_ASSIGN_OR_RAISE(auto file, arrow::io::ReadableFile::Open(path, pool));
  parquet::ReaderProperties properties(pool);
  properties.enable_buffered_stream();  // a page at a time, not a row group
  properties.set_thrift_string_size_limit(kMostThriftString);
  properties.set_page_checksum_verification(true);
  parquet::ArrowReaderProperties arrow_properties(/*use_threads=*/false);
  arrow_properties.set_batch_size(batch_rows);
  arrow_properties.set_pre_buffer(false);
  parquet::arrow::FileReaderBuilder builder;
  ARROW_RETURN_NOT_OK(builder.Open(std::move(file), properties));
  builder.memory_pool(pool)->properties(arrow_properties);
  return builder.Build();
}

}  // namespace capstan
