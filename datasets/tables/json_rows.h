// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DATASETS_TABLES_JSON_ROWS_H_
#define CAPSTAN_DATASETS_TABLES_JSON_ROWS_H_

#include <string>

#include "arrow/record_batch.h"
#include "arrow/status.h"

namespace capstan {

// Appends each row of `batch` as a line of JSON (see tables.h).
arrow::Status AppendRows(const arrow::RecordBatch& batch, std::string* out);

}  // namespace capstan

#endif  // CAPSTAN_DATASETS_TABLES_JSON_ROWS_H_
