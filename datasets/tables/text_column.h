// SPDX-License-Identifier: Apache-2.0
//
// One column of texts of a Parquet file, from any row on: another function of
// libcapstan_tables.so, for readers that stream.
#ifndef CAPSTAN_DATASETS_TABLES_TEXT_COLUMN_H_
#define CAPSTAN_DATASETS_TABLES_TEXT_COLUMN_H_

#include <cstddef>
#include <cstdint>

namespace capstan {

inline constexpr char kTextColumnSymbol[] = "capstan_text_column";
// What an error says where the file may be well.
inline constexpr char kTooMuchMemory[] = "it needs too much memory";

// Functions that return a pointer or a bool put a sentence of at most `room`
// bytes into `error` where they fail. They throw nothing.
struct TextColumnApi {
  size_t size = sizeof(TextColumnApi);  // of the library's struct: its version
  // Null: not Parquet, damaged, no such column, or one that isn't of texts.
  // *rows: of the file; *bytes: of the column, unpacked.
  void* (*open)(const char* path, const char* column, int64_t* rows,
                int64_t* bytes, char* error, size_t room);
  // Passes the texts of rows [first, first + count), which must exist, to
  // `take`; null for a row without one. Rows behind the last ones are read
  // without a search. False from `take` stops before that row, and isn't an
  // error.
  bool (*read)(void* column, int64_t first, int64_t count, void* context,
               bool (*take)(void* context, const char* text, size_t size),
               char* error, size_t room);
  // Between which bytes of the file the texts of these rows lie.
  void (*place)(void* column, int64_t first, int64_t count, int64_t* begin,
                int64_t* end);
  void (*close)(void* column);
};

using TextColumn = const TextColumnApi* (*)();

}  // namespace capstan

#endif  // CAPSTAN_DATASETS_TABLES_TEXT_COLUMN_H_
