// SPDX-License-Identifier: Apache-2.0
#include "datasets/tables/text_column.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "arrow/api.h"
#include "arrow/io/file.h"
#include "arrow/table.h"
#include "parquet/arrow/writer.h"
#include "parquet/properties.h"

namespace capstan {
namespace {

const TextColumnApi& Api() {
  static const TextColumnApi* const api = [] {
    const char* const set = std::getenv("CAPSTAN_TABLES_LIBRARY");
    void* const library =
        dlopen(set != nullptr ? set : "datasets/tables/libcapstan_tables.so",
               RTLD_NOW);
    return reinterpret_cast<TextColumn>(dlsym(library, kTextColumnSymbol))();
  }();
  return *api;
}

std::shared_ptr<arrow::Array> ArrayOf(const std::vector<std::string>& texts) {
  arrow::StringBuilder builder;
  EXPECT_TRUE(builder.AppendValues(texts).ok());
  return builder.Finish().ValueOrDie();
}

// With a column of noise behind the texts, so that pages of texts lie apart.
std::string Write(const std::vector<std::string>& texts, size_t noise,
                  int64_t group_rows, bool dictionary = false) {
  const std::string path = ::testing::TempDir() + "/texts.parquet";
  std::vector<std::string> wide;
  std::mt19937 random(1);
  for (size_t i = 0; i < texts.size(); ++i) {
    std::string bytes(noise, ' ');
    for (char& byte : bytes) byte = static_cast<char>('!' + random() % 90);
    wide.push_back(std::move(bytes));
  }
  const auto table =
      arrow::Table::Make(arrow::schema({arrow::field("text", arrow::utf8()),
                                        arrow::field("wide", arrow::utf8())}),
                         {ArrayOf(texts), ArrayOf(wide)});
  auto out = arrow::io::FileOutputStream::Open(path).ValueOrDie();
  parquet::WriterProperties::Builder properties;
  properties.compression(arrow::Compression::SNAPPY)->write_batch_size(1);
  if (!dictionary) properties.disable_dictionary();
  EXPECT_TRUE(parquet::arrow::WriteTable(*table, arrow::default_memory_pool(),
                                         out, group_rows, properties.build())
                  .ok());
  EXPECT_TRUE(out->Close().ok());
  return path;
}

struct File {
  explicit File(const std::string& path)
      : column(Api().open(path.c_str(), "text", &rows, &bytes, error,
                          sizeof(error))) {}
  ~File() { Api().close(column); }

  // Those of at most `most` rows.
  std::vector<std::string> Read(int64_t first, int64_t count,
                                size_t most = 1 << 30) {
    struct Out {
      std::vector<std::string> texts;
      size_t most;
    } out{{}, most};
    const bool read = Api().read(
        column, first, count, &out,
        [](void* context, const char* text, size_t size) {
          auto* const to = static_cast<Out*>(context);
          if (to->texts.size() == to->most) return false;
          to->texts.emplace_back(text, size);
          return true;
        },
        error, sizeof(error));
    EXPECT_TRUE(read) << error;
    return out.texts;
  }

  int64_t rows = 0;
  int64_t bytes = 0;
  char error[500] = {};
  void* column = nullptr;
};

std::vector<std::string> Texts(int count, size_t size) {
  std::vector<std::string> texts;
  for (int i = 0; i < count; ++i) {
    texts.push_back(std::to_string(i) + std::string(size, 'a' + i % 26));
  }
  return texts;
}

std::vector<std::string> Part(const std::vector<std::string>& texts,
                              int64_t first, int64_t count) {
  const auto begin = texts.begin() + first;
  return {begin, begin + std::min<int64_t>(count, texts.end() - begin)};
}

// As of a copy with holes: only the bytes that place() names are there.
TEST(TextColumnTest, ReadsNoMoreThanThePlaceOfTheRows) {
  const std::vector<std::string> texts = Texts(4000, 700);
  // Groups that 128 rows, Arrow's batch, don't divide.
  const std::string path = Write(texts, 3000, 1000);
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  const std::string copy = path + ".copy";
  std::ofstream(copy, std::ios::binary) << std::string(bytes.size(), '\0');
  std::fstream holes(copy, std::ios::in | std::ios::out | std::ios::binary);
  const auto fetch = [&](int64_t begin, int64_t end) {
    holes.seekp(begin);
    holes.write(bytes.data() + begin, end - begin);
    holes.flush();
  };
  const auto size = static_cast<int64_t>(bytes.size());
  uint32_t footer = 0;
  std::memcpy(&footer, bytes.data() + size - 8, sizeof(footer));
  fetch(size - 8 - footer, size);
  File reader(copy);
  ASSERT_NE(reader.column, nullptr) << reader.error;
  for (const int64_t count : {201, 150}) {
    for (int64_t first = 0; first < 4000; first += count) {
      int64_t begin = 0;
      int64_t end = 0;
      const int64_t here = std::min<int64_t>(count, 4000 - first);
      Api().place(reader.column, first, here, &begin, &end);
      ASSERT_LT(end - begin, size / 2);
      fetch(begin, end);
      ASSERT_EQ(reader.Read(first, here), Part(texts, first, here)) << first;
    }
  }
}

TEST(TextColumnTest, GoesOnBehindTheRowThatWasTakenLast) {
  const std::vector<std::string> texts = Texts(1000, 10);
  File reader(Write(texts, 1, 300));
  EXPECT_EQ(reader.Read(100, 500, 333), Part(texts, 100, 333));
  EXPECT_EQ(reader.Read(433, 500), Part(texts, 433, 500));
  EXPECT_EQ(reader.Read(5, 900), Part(texts, 5, 900));
}

// A dictionary has each text once.
TEST(TextColumnTest, BytesAreThoseOfTheTexts) {
  const File reader(
      Write(std::vector<std::string>(3000, std::string(5000, 'x')), 1, 1000,
            /*dictionary=*/true));
  EXPECT_GE(reader.bytes, 3000 * 5000);
  EXPECT_LT(reader.bytes, 3000 * 5100);
}

int64_t BytesMapped() {
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0;
  statm >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

// 0: all rows are there, of the right length.
int ReadWithMemory(const std::string& path, int64_t memory, int64_t rows,
                   size_t last) {
  File reader(path);
  const auto most = static_cast<rlim_t>(BytesMapped() + memory);
  const rlimit limit = {most, most};
  setrlimit(RLIMIT_AS, &limit);
  struct Seen {
    int64_t rows = 0;
    size_t last = 0;
  } seen;
  const bool read = Api().read(
      reader.column, 0, rows, &seen,
      [](void* context, const char*, size_t size) {
        auto* const to = static_cast<Seen*>(context);
        ++to->rows;
        to->last = size;
        return true;
      },
      reader.error, sizeof(reader.error));
  if (read) return seen.rows == rows && seen.last == last ? 0 : 1;
  return reader.error == std::string(kTooMuchMemory) ? 2 : 3;
}

TEST(TextColumnTest, LongRowsNeedTheMemoryOfFew) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "address space is taken by shadows";
#endif
  constexpr size_t kLong = 20 << 20;
  constexpr int64_t kMemory = 160 << 20;
  std::vector<std::string> texts(12, std::string(kLong, 'x'));
  std::string path = Write(texts, 1, 1000);
  EXPECT_EXIT(_exit(ReadWithMemory(path, kMemory, 12, kLong)),
              ::testing::ExitedWithCode(0), "");
  // Where the mean says nothing of it.
  texts.insert(texts.begin(), 3000, "short");
  path = Write(texts, 1, 10000);
  EXPECT_EXIT(_exit(ReadWithMemory(path, kMemory, 3012, kLong)),
              ::testing::ExitedWithCode(0), "");
  // And where not even one fits, that is said.
  EXPECT_EXIT(_exit(ReadWithMemory(path, 10 << 20, 3012, kLong)),
              ::testing::ExitedWithCode(2), "");
}

}  // namespace
}  // namespace capstan
