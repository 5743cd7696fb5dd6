// SPDX-License-Identifier: Apache-2.0
//
// Tables (Parquet, CSV, TSV) as JSON lines, by Arrow: the one function of
// libcapstan_tables.so, which is opened when a table is named. It knows nothing
// of the rest, so that Arrow's build and ours needn't agree on anything else.
#ifndef CAPSTAN_DATASETS_TABLES_TABLES_H_
#define CAPSTAN_DATASETS_TABLES_TABLES_H_

#include <cstddef>
#include <cstdint>

namespace capstan {

inline constexpr char kTablesLibrary[] = "libcapstan_tables.so";
inline constexpr char kTablesSymbol[] = "capstan_table_to_json";

struct TableJob {
  size_t size = sizeof(TableJob);  // of the caller's struct: its version
  // Parquet: the file. Otherwise only for messages.
  const char* path = nullptr;
  // ',' or '\t'; 0: Parquet.
  char delimiter = 0;
  void* context = nullptr;
  // For CSV and TSV: the next bytes of the text, at most `most`; 0 at its end,
  // -1 after an error that the caller knows.
  int64_t (*read)(void* context, char* to, int64_t most) = nullptr;
  // Takes the next lines; false: stop.
  bool (*write)(void* context, const char* bytes, size_t size) = nullptr;
};

// Writes one JSON object per row: its keys are the columns, without those that
// are null. Texts stay texts, also those of CSV that look like numbers; lists
// and structs become lists and objects; dates and the like, texts. Bytes that
// aren't UTF-8 are left out. Returns whether all rows were written; if not,
// `error` has a sentence of at most `room` bytes. May start threads.
using TableToJson = bool (*)(const TableJob* job, char* error, size_t room);

}  // namespace capstan

#endif  // CAPSTAN_DATASETS_TABLES_TABLES_H_
