// SPDX-License-Identifier: Apache-2.0
//
// What Arrow writes, as JSON lines.
#include "datasets/tables/tables.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "arrow/api.h"
#include "arrow/io/file.h"
#include "arrow/json/from_string.h"
#include "arrow/table.h"
#include "parquet/arrow/writer.h"
#include "parquet/properties.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TableToJson Library() {
  const char* const set = std::getenv("CAPSTAN_TABLES_LIBRARY");
  void* const library = dlopen(
      set != nullptr ? set : "datasets/tables/libcapstan_tables.so", RTLD_NOW);
  if (library == nullptr) return nullptr;
  return reinterpret_cast<TableToJson>(dlsym(library, kTablesSymbol));
}

// The rows, or "ERROR .."; no more than `most` bytes.
std::string Rows(const std::string& path, size_t most = 1 << 30) {
  static const TableToJson convert = Library();
  if (convert == nullptr) return "no library";
  struct Out {
    std::string lines;
    size_t most;
  } out{"", most};
  TableJob job;
  job.path = path.c_str();
  job.context = &out;
  job.write = [](void* context, const char* bytes, size_t size) {
    auto* const to = static_cast<Out*>(context);
    to->lines.append(bytes, size);
    return to->lines.size() < to->most;
  };
  char error[500];
  if (convert(&job, error, sizeof(error))) return out.lines;
  return std::string("ERROR ") + error;
}

std::string Write(const std::shared_ptr<arrow::Table>& table,
                  arrow::Compression::type compression, int64_t group_rows) {
  const std::string path = ::testing::TempDir() + "/table.parquet";
  auto out = arrow::io::FileOutputStream::Open(path).ValueOrDie();
  const auto properties =
      parquet::WriterProperties::Builder().compression(compression)->build();
  EXPECT_TRUE(parquet::arrow::WriteTable(*table, arrow::default_memory_pool(),
                                         out, group_rows, properties)
                  .ok());
  EXPECT_TRUE(out->Close().ok());
  return path;
}

std::shared_ptr<arrow::Table> TableOf(
    const std::shared_ptr<arrow::Field>& field, const std::string& json) {
  const auto column =
      arrow::json::ArrayFromJSONString(field->type(), json).ValueOrDie();
  return arrow::Table::Make(arrow::schema({field}), {column});
}

std::string OneColumn(const std::shared_ptr<arrow::DataType>& type,
                      const std::string& json) {
  return Rows(Write(TableOf(arrow::field("c", type), json),
                    arrow::Compression::SNAPPY, 100));
}

TEST(TablesTest, NestedColumnsAreNestedJsonWithoutItsNulls) {
  const auto message = arrow::struct_({arrow::field("role", arrow::utf8()),
                                       arrow::field("content", arrow::utf8())});
  EXPECT_EQ(
      OneColumn(arrow::list(message),
                R"([[{"role": "user", "content": "a\"\n\u0001\u00e4"},
                           {"role": "tool", "content": null}], [], null])"),
      "{\"c\":[{\"role\":\"user\",\"content\":\"a\\\"\\n\\u0001\xc3\xa4\"}"
      ",{\"role\":\"tool\"}]}\n{\"c\":[]}\n{}\n");
  EXPECT_EQ(OneColumn(arrow::map(arrow::utf8(), arrow::int64()),
                      R"([[["k", 1], ["l", null]]])"),
            "{\"c\":{\"k\":1,\"l\":null}}\n");
  EXPECT_EQ(
      OneColumn(arrow::large_list(arrow::large_utf8()), R"([["x", null]])"),
      "{\"c\":[\"x\",null]}\n");
}

TEST(TablesTest, NumbersDatesAndBytes) {
  EXPECT_EQ(OneColumn(arrow::float64(), "[0.1, NaN, -3]"),
            "{\"c\":0.1}\n{\"c\":null}\n{\"c\":-3}\n");
  EXPECT_EQ(OneColumn(arrow::int64(), "[9223372036854775807]"),
            "{\"c\":9223372036854775807}\n");
  EXPECT_EQ(OneColumn(arrow::boolean(), "[true, false]"),
            "{\"c\":true}\n{\"c\":false}\n");
  EXPECT_EQ(OneColumn(arrow::date32(), "[0]"), "{\"c\":\"1970-01-01\"}\n");
  // Old writers have texts as bytes; images aren't texts.
  arrow::BinaryBuilder bytes;
  ASSERT_TRUE(bytes.Append("text").ok());
  ASSERT_TRUE(bytes.Append("\xff\xd8\xff").ok());
  const auto table =
      arrow::Table::Make(arrow::schema({arrow::field("c", arrow::binary())}),
                         {bytes.Finish().ValueOrDie()});
  EXPECT_EQ(Rows(Write(table, arrow::Compression::ZSTD, 1)),
            "{\"c\":\"text\"}\n{}\n");
}

TEST(TablesTest, AllRowsOfAllRowGroupsInEachCompression) {
  arrow::StringBuilder texts;
  std::string lines;
  for (int i = 0; i < 5000; ++i) {
    const std::string text = "row " + std::to_string(i % 37);
    ASSERT_TRUE(texts.Append(text).ok());
    lines += "{\"text\":\"" + text + "\"}\n";
  }
  const auto table =
      arrow::Table::Make(arrow::schema({arrow::field("text", arrow::utf8())}),
                         {texts.Finish().ValueOrDie()});
  for (const auto compression :
       {arrow::Compression::UNCOMPRESSED, arrow::Compression::SNAPPY,
        arrow::Compression::GZIP, arrow::Compression::ZSTD,
        arrow::Compression::LZ4, arrow::Compression::BROTLI}) {
    EXPECT_TRUE(Rows(Write(table, compression, 777)) == lines) << compression;
  }
}

// Which a check of the layout alone would pass on.
TEST(TablesTest, ATextThatIsNotUtf8IsAnError) {
  arrow::BinaryBuilder bytes;
  ASSERT_TRUE(bytes.AppendValues({"text", "\xff\xd8"}).ok());
  const auto array = bytes.Finish().ValueOrDie();
  const auto texts = std::make_shared<arrow::StringArray>(
      array->length(), array->data()->buffers[1], array->data()->buffers[2]);
  const auto table = arrow::Table::Make(
      arrow::schema({arrow::field("c", arrow::utf8())}), {texts});
  EXPECT_THAT(
      Rows(Write(table, arrow::Compression::SNAPPY, 100)),
      AllOf(HasSubstr("ERROR "), HasSubstr("column 0"), HasSubstr("UTF8")));
}

// A few bytes that become any number of rows: whoever asked may stop.
TEST(TablesTest, StopsWhenItsCallerHasEnough) {
  const auto nulls =
      arrow::MakeArrayOfNull(arrow::utf8(), 1 << 22).ValueOrDie();
  const auto table = arrow::Table::Make(
      arrow::schema({arrow::field("c", arrow::utf8())}), {nulls});
  EXPECT_EQ(Rows(Write(table, arrow::Compression::ZSTD, 1 << 22), 1000),
            "ERROR stopped");
}

TEST(TablesTest, AStructOfAnotherBuildIsRefused) {
  const TableToJson convert = Library();
  ASSERT_NE(convert, nullptr);
  TableJob job;
  job.size = 8;
  char error[100];
  EXPECT_FALSE(convert(&job, error, sizeof(error)));
  EXPECT_THAT(error, HasSubstr("another build"));
}

}  // namespace
}  // namespace capstan
