// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DATASETS_TABLES_PARQUET_FILE_H_
#define CAPSTAN_DATASETS_TABLES_PARQUET_FILE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "arrow/result.h"
#include "parquet/arrow/reader.h"

namespace capstan {

// Opens a file to be read `batch_rows` rows at a time, on one thread, with
// little memory and checksums verified.
arrow::Result<std::unique_ptr<parquet::arrow::FileReader>> OpenParquetFile(
    const std::string& path, int64_t batch_rows);

}  // namespace capstan

#endif  // CAPSTAN_DATASETS_TABLES_PARQUET_FILE_H_
