// SPDX-License-Identifier: Apache-2.0
//
// Rows of tables: the same as those of JSON lines. Skipped in a build without
// Arrow, but for what must be said then.
#include "datasets/chat/table_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "datasets/chat/source_file.h"

namespace capstan::chat {
namespace {

namespace fs = std::filesystem;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const char kChats[] = "datasets/chat/testdata/chats.parquet";

std::string File(const std::string& name, const std::string& bytes) {
  const std::string path = ::testing::TempDir() + "/" + name;
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

std::string BytesOfFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string Gzip(const std::string& text) {
  const std::string path = ::testing::TempDir() + "/packed";
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, text.data(), text.size());
  gzclose(file);
  return BytesOfFile(path);
}

std::string Zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(&out[0], out.size(), text.data(), text.size(), 3));
  return out;
}

// The rows as JSON, or what is wrong.
std::string Rows(const std::string& path) {
  const auto source = OpenSource(path);
  return source.ok() ? std::string(source->text)
                     : "ERROR " + std::string(source.status().message());
}

class TableTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto source = OpenSource(File("probe.csv", "a\n1\n"));
    if (absl::IsUnimplemented(source.status())) {
      ASSERT_THAT(std::string(source.status().message()),
                  HasSubstr("isn't part of this build"));
      GTEST_SKIP() << source.status();
    }
    ASSERT_TRUE(source.ok()) << source.status();
  }
};

TEST_F(TableTest, TextsOfCsvStayAsTheyAre) {
  EXPECT_EQ(Rows(File("a.csv",
                      "\xef\xbb\xbf"
                      "question,answer\r\n"
                      "007,\"a, \"\"b\"\"\nc\"\r\n\n"
                      "\"\",\"\\n\xc3\xa4\"\r\n"
                      "1e5,true")),
            "{\"question\":\"007\",\"answer\":\"a, \\\"b\\\"\\nc\"}\n"
            "{\"question\":\"\",\"answer\":\"\\\\n\xc3\xa4\"}\n"
            "{\"question\":\"1e5\",\"answer\":\"true\"}\n");
  EXPECT_EQ(Rows(File("one.csv", "a\n1\n2")), "{\"a\":\"1\"}\n{\"a\":\"2\"}\n");
  EXPECT_EQ(Rows(File("a.tsv", "q\ta\n1,2\t\"3\t4\"\n")),
            "{\"q\":\"1,2\",\"a\":\"3\\t4\"}\n");
}

TEST_F(TableTest, HeadersOfSpreadsheetsAreUnderstood) {
  EXPECT_EQ(Rows(File("a.csv",
                      "\xef\xbb\xbfQuestion; \"ANSWER\" ;Note\r\n"
                      "\"1;2\";3,5;x\r\n")),
            "{\"question\":\"1;2\",\"answer\":\"3,5\",\"Note\":\"x\"}\n");
  // Nothing is renamed to a name that is there, and no part of a name.
  EXPECT_EQ(Rows(File("b.csv", "Text,text,\"text, more\"\n1,2,3\n")),
            "{\"Text\":\"1\",\"text\":\"2\",\"text, more\":\"3\"}\n");
  EXPECT_EQ(Rows(File("c.csv", "\"a;b\"\n1\n")), "{\"a;b\":\"1\"}\n");
  EXPECT_THAT(Rows(File("d.csv", "Question")), HasSubstr("has no rows"));
}

TEST_F(TableTest, PackedTablesAreTheSameTables) {
  std::string csv = "question,answer\n";
  std::string lines;
  for (int i = 0; i < 20000; ++i) {
    absl::StrAppend(&csv, "\"what\nis ", i, "\",", i * 7, "\n");
    absl::StrAppend(&lines, "{\"question\":\"what\\nis ", i, "\",\"answer\":\"",
                    i * 7, "\"}\n");
  }
  EXPECT_TRUE(Rows(File("p.csv", csv)) == lines);
  EXPECT_TRUE(Rows(File("p.csv.gz", Gzip(csv))) == lines);
  EXPECT_TRUE(Rows(File("P.CSV.zst", Zstd(csv))) == lines);
  const auto two = OpenSource(File("2.csv.gz", Gzip(csv) + Gzip("a,b\n")));
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_EQ(two->members, 2u);
  EXPECT_THAT(Rows(File("t.csv.gz", Gzip(csv) + "a,b\n")),
              HasSubstr("t.csv.gz can't be unpacked: its last 4 bytes"));
  for (char& c : csv) c = c == ',' ? '\t' : c;
  EXPECT_TRUE(Rows(File("p.tsv.zst", Zstd(csv))) == lines);
}

TEST_F(TableTest, ParquetHasItsNestedColumns) {
  const std::string rows = Rows(File("chats.parquet", BytesOfFile(kChats)));
  EXPECT_TRUE(absl::StartsWith(
      rows, "{\"messages\":[{\"role\":\"user\",\"content\":\""))
      << rows;
  // By its bytes, whatever its name is.
  EXPECT_EQ(Rows(File("renamed.jsonl", BytesOfFile(kChats))), rows);
}

TEST_F(TableTest, DamagedTablesAreErrorsThatNameThem) {
  const std::string whole = BytesOfFile(kChats);
  const auto expect_error = [](const std::string& name,
                               const std::string& bytes,
                               const std::string& words) {
    const std::string path = File(name, bytes);
    EXPECT_THAT(Rows(path),
                ::testing::AllOf(HasSubstr("ERROR " + path), HasSubstr(words)));
  };
  expect_error("cut.parquet", whole.substr(0, whole.size() / 2),
               "can't be read as Parquet: ");
  expect_error("head.parquet", "PAR1", "can't be read as Parquet: ");
  expect_error("ends.parquet", "PAR1....PAR1", "can't be read as Parquet: ");
  expect_error("wide.csv", "a,b\n1,2\n3,4\n1,2,3\n", "Row #4: Expected 2");
  expect_error("open.csv", "a,b\n1,\"2\n", "a quote isn't closed");
  expect_error("one.csv", "a\n\"2\n3\n", "a quote isn't closed");
  expect_error("opened.csv", "a,b\n\"x,1\ny,2\n",
               "Row #2: Expected 2 columns, got 1: \"x,1; is a quote open");
  expect_error("latin1.csv", "a,b\n1,\xe4\n", "can't be read as CSV");
  expect_error("head.csv", "a,b\n", "has no rows");
  const std::string packed = Gzip(std::string("a,b\n") + std::string(99, 'x'));
  expect_error("cut.csv.gz", packed.substr(0, packed.size() - 9),
               "can't be unpacked: its end is missing");
}

// Whatever a bit says, the trainer goes on: it is rows, or an error with the
// file's name.
TEST_F(TableTest, FlippedBitsNeverEndTheProcess) {
  const std::string whole = BytesOfFile(kChats);
  const uint64_t key = RandomKey(7, "bits");
  for (uint64_t i = 0; i < 150; ++i) {
    std::string bytes = whole;
    const uint64_t bit = RandomBelow(key, i, 8 * bytes.size());
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    const std::string path = File(absl::StrCat("bit", i, ".parquet"), bytes);
    EXPECT_THAT(Rows(path),
                AnyOf(HasSubstr("ERROR " + path), StartsWith("{\"")));
  }
}

TEST_F(TableTest, ABombHasALimit) {
  std::string csv = "text\n";
  for (int i = 0; i < 100000; ++i)
    csv += "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n";
  const std::string path = File("bomb.csv.zst", Zstd(csv));
  EXPECT_THAT(std::string(OpenSource(path, 1000000).status().message()),
              HasSubstr(path + " can't be unpacked: it becomes more than "
                               "1000000 bytes"));
}

TEST(TableLibraryTest, WithoutArrowTheErrorSaysWhatToDo) {
  const std::string path = File("no_arrow.csv", "a,b\n1,2\n");
  ASSERT_EQ(setenv("CAPSTAN_TABLES_LIBRARY", "/no/such.so", 1), 0);
  const auto source = OpenSource(path);
  unsetenv("CAPSTAN_TABLES_LIBRARY");
  EXPECT_TRUE(absl::IsUnimplemented(source.status()));
  EXPECT_THAT(std::string(source.status().message()),
              HasSubstr(path + " can't be read as CSV"));
}

// The rows as a library of the test's tells of the process that it runs in.
std::string Probe(const std::string& path) {
  // With a slash, so that dlopen takes it for a path.
  const char* const set = std::getenv("CAPSTAN_TABLE_PROBE");
  const std::string library =
      fs::absolute(set != nullptr ? set : "datasets/tables/table_probe.so");
  EXPECT_EQ(setenv("CAPSTAN_TABLES_LIBRARY", library.c_str(), 1), 0);
  const std::string rows = Rows(path);
  unsetenv("CAPSTAN_TABLES_LIBRARY");
  return rows;
}

TEST(TableLibraryTest, TheReaderHasALimitOfTimeAndNoOtherFile) {
  const int other = open("/dev/null", O_RDONLY);
  ASSERT_GE(other, 0);
  // That of its socket.
  EXPECT_EQ(Probe(File("probe.csv", "a,b\n1,2\n")),
            "{\"seconds\":60,\"files\":1}\n");
  EXPECT_EQ(Probe(File("probe.parquet", "PAR1" + std::string(3 << 20, 'x'))),
            "{\"seconds\":63,\"files\":1}\n");
  close(other);
}

TEST(TableLibraryTest, WhatTakesForEverIsAnError) {
  const std::string path = File("slow.csv", "a,b\n1,2\n");
  EXPECT_THAT(Probe(path), HasSubstr("ERROR " + path +
                                     " can't be read as CSV: it takes too "
                                     "long, more than 60 s"));
}

}  // namespace
}  // namespace capstan::chat
