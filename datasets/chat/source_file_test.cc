// SPDX-License-Identifier: Apache-2.0
#include "datasets/chat/source_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace capstan::chat {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// "LINE:row" of each, in pieces of `bytes`; an error comes last.
std::vector<std::string> Rows(absl::string_view text, uint64_t bytes = 1) {
  RowScanner scanner(text);
  std::vector<std::string> out;
  std::vector<RowPlace> rows;
  while (true) {
    const absl::Status status = scanner.Next(bytes, &rows);
    for (const RowPlace& row : rows) {
      out.push_back(
          absl::StrCat(row.line, ":", text.substr(row.offset, row.bytes)));
    }
    if (!status.ok()) out.push_back(std::string(status.message()));
    if (!status.ok() || rows.empty()) return out;
  }
}

TEST(RowScannerTest, LinesAreRowsAndBlankOnesAreNot) {
  for (uint64_t bytes : {1, 8, 1000}) {
    EXPECT_THAT(Rows("{\"a\": 1}\r\n\n  {\"b\":2} \n \t\nbroken", bytes),
                ElementsAre("1:{\"a\": 1}", "3:{\"b\":2}", "5:broken"));
  }
  EXPECT_THAT(Rows("\xef\xbb\xbf{}\n"), ElementsAre("1:{}"));
  EXPECT_THAT(Rows("\n \n"), ElementsAre());
}

TEST(RowScannerTest, ListsAreCutAtTheirCommas) {
  for (uint64_t bytes : {1, 8, 1000}) {
    EXPECT_THAT(
        Rows("\n[ {\"a\": [1, {\"]\": \"}\\\"\"}]},\n\"x,y\" , 3,\n{}\n]\n",
             bytes),
        ElementsAre("2:{\"a\": [1, {\"]\": \"}\\\"\"}]}", "3:\"x,y\"", "3:3",
                    "4:{}"));
  }
  EXPECT_THAT(Rows("[]"), ElementsAre());
}

TEST(RowScannerTest, AnObjectsDataIsAList) {
  EXPECT_THAT(Rows("{\"version\": {\"n\": [1]},\n \"data\": [{\"a\":1},\n"
                   "{\"b\":2}], \"more\": 1}"),
              ElementsAre("2:{\"a\":1}", "3:{\"b\":2}"));
  // An object with such a key isn't a row.
  EXPECT_THAT(
      Rows("{\"text\": \"a\", \"data\": [1]}\n{\"text\": \"b\"}"),
      ElementsAre("1:{\"text\": \"a\", \"data\": [1]}", "2:{\"text\": \"b\"}"));
}

TEST(RowScannerTest, ALineMayBeAList) {
  EXPECT_THAT(
      Rows("\n[\"q\", {\"answer\": \"a\"}]\n[\"r\", \"b\"]\n"),
      ElementsAre("2:[\"q\", {\"answer\": \"a\"}]", "3:[\"r\", \"b\"]"));
  EXPECT_THAT(Rows("[[\"q\", \"a\"],\n[\"r\", \"b\"]]"),
              ElementsAre("1:[\"q\", \"a\"]", "2:[\"r\", \"b\"]"));
}

TEST(RowScannerTest, BrokenListsAreErrorsWithTheirLine) {
  EXPECT_THAT(Rows("[{},\n{}"),
              ElementsAre("1:{}", "2:{}",
                          HasSubstr("2: broken JSON: the list isn't closed")));
  EXPECT_THAT(Rows("[{}\n{}]"),
              ElementsAre("1:{}", HasSubstr("2: broken JSON: a comma")));
  EXPECT_THAT(Rows("[{},,{}]"),
              ElementsAre("1:{}", HasSubstr("an element of the list")));
  EXPECT_THAT(Rows("[{},"), ElementsAre("1:{}", HasSubstr("an element")));
  EXPECT_THAT(Rows("[}]"), ElementsAre(HasSubstr("an element")));
  EXPECT_THAT(Rows("[3, \"a\\"),
              ElementsAre("1:3", "1:\"a\\", HasSubstr("isn't closed")));
}

TEST(RowScannerTest, AnyBeginningOfAListEnds) {
  const std::string whole =
      "{\"v\":\"\\\\\", \"data\": [{\"a\":\"]\\\"\"}, [1,2], 3 ]}";
  for (size_t size = 0; size <= whole.size(); ++size) {
    Rows(absl::string_view(whole).substr(0, size));
  }
}

std::string Gzip(const std::string& text) {
  const std::string path = ::testing::TempDir() + "/packed.gz";
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, text.data(), text.size());
  gzclose(file);
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string Zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(&out[0], out.size(), text.data(), text.size(), 3));
  return out;
}

std::string File(const std::string& name, const std::string& bytes) {
  const std::string path = ::testing::TempDir() + "/" + name;
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

// More than one buffer.
std::string LongText() {
  std::string text;
  for (int i = 0; i < 200000; ++i) absl::StrAppend(&text, i, " rows\n");
  return text;
}

TEST(OpenSourceTest, UnpacksAllMembersOfPackedFilesOnce) {
  const std::string text = LongText();
  for (const auto& [name, bytes] :
       {std::make_pair("a.gz", Gzip(text) + Gzip("more")),
        std::make_pair("a.zst", Zstd(text) + Zstd("more"))}) {
    const std::string path = File(name, bytes);
    const auto source = OpenSource(path);
    ASSERT_TRUE(source.ok()) << source.status();
    EXPECT_TRUE(source->text == text + "more") << name;
    EXPECT_EQ(source->path, path);
    const auto again = OpenSource(path);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->file->path(), source->file->path());
  }
}

// What followed a member and didn't begin as one was passed over: rows were
// lost in silence.
TEST(OpenSourceTest, EachByteOfAPackedFileIsAccountedFor) {
  const auto error = [](const std::string& name, const std::string& bytes) {
    return std::string(OpenSource(File(name, bytes)).status().message());
  };
  const std::string text = "{\"text\": \"a\"}\n";
  for (const auto& [name, one] : {std::make_pair("e.gz", Gzip(text)),
                                  std::make_pair("e.zst", Zstd(text))}) {
    const std::string whole = one + one + one;
    const auto source = OpenSource(File(name, whole));
    ASSERT_TRUE(source.ok()) << source.status();
    EXPECT_EQ(source->members, 3u);
    EXPECT_EQ(source->bytes, whole.size());
    EXPECT_EQ(source->text, text + text + text);
    EXPECT_EQ(OpenSource(File(name, whole))->members, 3u);  // from the cache
    for (const std::string& more : {std::string("\n"), std::string(100, '\0'),
                                    one.substr(0, 3), text + text}) {
      EXPECT_THAT(error(name, whole + more),
                  HasSubstr(absl::StrCat(name, " can't be unpacked: ")));
    }
    // Each bit of the second member: an error, or the same rows (a name or a
    // time in its head).
    for (size_t bit = 0; bit < 8 * one.size(); ++bit) {
      std::string bytes = whole;
      bytes[one.size() + bit / 8] ^= static_cast<char>(1 << bit % 8);
      const auto flipped = OpenSource(File(name, bytes));
      // ZSTD_compress adds no checksum.
      if (flipped.ok() && name[2] == 'g') {
        EXPECT_EQ(flipped->text, source->text) << bit;
      }
      if (flipped.ok()) {
        EXPECT_EQ(flipped->members, 3u) << bit;
      }
      EXPECT_FALSE(flipped.ok() && bit < 16) << bit;
    }
    std::string bytes = whole;
    bytes[0] ^= 1;
    EXPECT_THAT(error(name, bytes), HasSubstr("doesn't begin as such a file"));
  }
  EXPECT_THAT(error("e.gz", Gzip(text) + "tail"),
              HasSubstr("its last 4 bytes, from "));
  // Members without contents are members.
  const auto source = OpenSource(File("n.gz", Gzip("") + Gzip(text)));
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(source->members, 2u);
}

// A cut one was read as if it were whole: half of the rows were lost.
TEST(OpenSourceTest, ADamagedUnpackedFileIsMadeAgain) {
  const std::string text = LongText();
  const std::string path = File("damaged.gz", Gzip(text));
  const auto unpacked = [&path] {
    const auto source = OpenSource(path);
    EXPECT_TRUE(source.ok()) << source.status();
    return *source;
  };
  const std::string cache = unpacked().file->path();
  const auto whole = std::filesystem::file_size(cache);
  for (uint64_t size : {whole / 2, whole - 1, uint64_t{10}, uint64_t{0}}) {
    std::filesystem::resize_file(cache, size);
    EXPECT_TRUE(unpacked().text == text) << size;
  }
  std::fstream(cache, std::ios::in | std::ios::out) << "1 rows\n1";
  EXPECT_TRUE(unpacked().text == text);
  EXPECT_EQ(std::filesystem::file_size(cache), whole);
}

TEST(OpenSourceTest, UnpackingHasALimit) {
  const std::string text(1 << 20, 'x');
  for (const std::string& path :
       {File("bomb.gz", Gzip(text)), File("bomb.zst", Zstd(text))}) {
    EXPECT_THAT(std::string(OpenSource(path, 1000000).status().message()),
                HasSubstr(path + " can't be unpacked: it becomes more than "
                                 "1000000 bytes, the limit"));
    EXPECT_TRUE(OpenSource(path, 1 << 20).ok());
  }
}

TEST(OpenSourceTest, WhatCannotBeReadSaysWhy) {
  const auto error = [](const std::string& name, const std::string& bytes) {
    return std::string(OpenSource(File(name, bytes)).status().message());
  };
  const std::string gzip = Gzip(LongText());
  const std::string zstd = Zstd(LongText());
  EXPECT_THAT(error("b.gz", gzip.substr(0, gzip.size() / 2)),
              HasSubstr("b.gz can't be unpacked: its end is missing"));
  EXPECT_THAT(error("b.zst", zstd.substr(0, zstd.size() / 2)),
              HasSubstr("b.zst can't be unpacked: its end is missing"));
  EXPECT_THAT(error("c.gz", gzip.substr(0, 500) + std::string(500, 'x')),
              HasSubstr("c.gz can't be unpacked"));
  EXPECT_THAT(error("c.zst", zstd.substr(0, 20) + std::string(500, 'x')),
              HasSubstr("c.zst can't be unpacked"));
  EXPECT_THAT(error("d.gz", Gzip("")), HasSubstr("d.gz is empty"));
  EXPECT_THAT(error("f.jsonl", ""), HasSubstr("is empty"));
  EXPECT_THAT(std::string(OpenSource("/no/such").status().message()),
              HasSubstr("/no/such can't be opened"));
  // The partial file is removed.
  for (const auto& entry : std::filesystem::directory_iterator(
           ::testing::TempDir() + "/.capstan")) {
    EXPECT_NE(entry.path().extension(), ".new") << entry.path();
  }
}

TEST(LineOfTest, CountsFromOne) {
  EXPECT_EQ(LineOf("a\nb\nc", 0), 1);
  EXPECT_EQ(LineOf("a\nb\nc", 4), 3);
}

}  // namespace
}  // namespace capstan::chat
