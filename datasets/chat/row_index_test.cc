// SPDX-License-Identifier: Apache-2.0
//
// The index that is kept of a source: when it is made anew, and what becomes of
// it where files change or can't be written.
#include "datasets/chat/row_index.h"

#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <isa-l/crc64.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/small_disk_for_test.h"
#include "datasets/chat/chat_testing.h"
#include "plugins/sdk/dataset.h"

namespace capstan::chat {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

std::vector<std::string> CachedFiles(const std::string& data) {
  std::vector<std::string> names;
  for (const auto& entry :
       fs::directory_iterator(fs::path(data).parent_path() / ".capstan")) {
    if (entry.path().filename() != "lock") names.push_back(entry.path());
  }
  std::sort(names.begin(), names.end());
  return names;
}

TEST(RowIndexTest, TheIndexIsKeptAndMadeAnewWhenItMustBe) {
  const std::string path = File("k.jsonl", ManyRows());
  MustMake(Of(path));
  const std::vector<std::string> files = CachedFiles(path);
  ASSERT_EQ(files.size(), 1);
  const auto written = fs::last_write_time(files[0]);
  EXPECT_EQ(MustMake(Of(path))->size(), 1000);
  EXPECT_EQ(fs::last_write_time(files[0]), written);
  EXPECT_EQ(CachedFiles(path).size(), 1);
  // A different tokenizer or setting makes a different index.
  ASSERT_TRUE(Make(Of(path), 2).ok());
  ASSERT_TRUE(Make(Of(path, 5)).ok());
  EXPECT_EQ(CachedFiles(path).size(), 3);
  // A broken one.
  fs::resize_file(files[0], 300);
  EXPECT_EQ(MustMake(Of(path))->size(), 1000);
  // A different file of that name.
  File("k.jsonl", TextRow("only"));
  EXPECT_EQ(MustMake(Of(path))->size(), 1);
}

std::string ReadBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void WriteBytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

Config Packed(const std::string& path) {
  Config config = Of(path, 50);
  config.set_packing(BEST_FIT);
  config.set_validation_fraction(0.1);
  return config;
}

// All of its tokens, in order.
std::vector<int64_t> AllIds(const Chat& chat) {
  std::vector<int64_t> ids;
  Batch batch;
  for (int64_t i = 0; i < chat.size(); ++i) {
    EXPECT_TRUE(chat.Read({i}, &batch).ok());
    const at::Tensor& row = batch.at(kInputIds);
    const int64_t* const begin = row.const_data_ptr<int64_t>();
    ids.insert(ids.end(), begin, begin + row.numel());
  }
  return ids;
}

// One flipped bit made 11 of 20 runs crash, and 4 train on other data.
TEST(RowIndexTest, ADamagedCacheIsMadeAgain) {
  const std::string path = File("f.jsonl", ManyRows());
  const std::vector<int64_t> ids = AllIds(*MustMake(Packed(path)));
  const std::vector<std::string> files = CachedFiles(path);
  ASSERT_EQ(files.size(), 1);
  const std::string good = ReadBytes(files[0]);
  for (uint64_t i = 0; i < 40; ++i) {
    std::string bad = good;
    bad[RandomBelow(1, i, bad.size())] ^= 1 << (i % 8);
    WriteBytes(files[0], bad);
    EXPECT_EQ(AllIds(*MustMake(Packed(path))), ids) << i;
    EXPECT_EQ(ReadBytes(files[0]), good);
  }
}

// With a checksum that fits: whoever can write the folder can do that.
TEST(RowIndexTest, AForgedCacheIsMadeAgain) {
  const std::string path = File("f.jsonl", ManyRows());
  for (const Packing packing : {BEST_FIT, BEST_FIT_SPLIT, WRAPPED}) {
    Config config = Packed(path);
    config.set_packing(packing);
    const std::vector<int64_t> ids = AllIds(*MustMake(config));
    const std::vector<std::string> files = CachedFiles(path);
    ASSERT_EQ(files.size(), 1);
    const std::string& file = files[0];
    const std::string good = ReadBytes(file);
    for (uint64_t i = 0; i < 100; ++i) {
      std::string bad = good;
      const size_t contents = bad.size() - 40;
      const size_t at = RandomBelow(2, i, contents / 4) * 4;
      // Small numbers and great ones.
      const uint32_t number = i % 2 == 0 ? i : ~uint32_t{0};
      bad.replace(at, 4, reinterpret_cast<const char*>(&number), 4);
      const auto crc = [&bad](size_t from, size_t bytes) {
        const uint64_t sum = crc64_ecma_refl(
            0, reinterpret_cast<const unsigned char*>(&bad[from]), bytes);
        return std::string(reinterpret_cast<const char*>(&sum), sizeof(sum));
      };
      bad.replace(bad.size() - 16, 8, crc(0, contents));
      bad.replace(bad.size() - 8, 8, crc(contents, 32));
      WriteBytes(file, bad);
      const auto chat = Make(config);
      if (!chat.ok()) continue;  // its facts say that there is nothing in it
      Batch batch;
      for (int64_t sample = 0; sample < (*chat)->size(); ++sample) {
        (*chat)->Read({sample}, &batch).IgnoreError();
      }
    }
    WriteBytes(file, good);
    EXPECT_EQ(AllIds(*MustMake(config)), ids);
    fs::remove(file);
  }
}

TEST(RowIndexTest, ACacheThatChangesMeanwhileIsAnError) {
  const std::string path = File("c.jsonl", ManyRows());
  const auto chat = MustMake(Packed(path));
  const std::string file = CachedFiles(path)[0];
  std::fstream(file, std::ios::in | std::ios::out)
      << std::string(fs::file_size(file), '\x7f');
  Batch batch;
  EXPECT_TRUE(absl::IsDataLoss(chat->Read({3}, &batch)));
  fs::resize_file(file, 0);
  const absl::Status cut = chat->Read({3}, &batch);
  EXPECT_TRUE(absl::IsDataLoss(cut)) << cut;
}

TEST(RowIndexTest, WithoutAFolderForItsIndexItIsKeptInAFileWithoutAName) {
  const std::string path = File("n.jsonl", ManyRows());
  const fs::path in_the_way = fs::path(path).parent_path() / ".capstan";
  WriteBytes(in_the_way, "a file");
  setenv("XDG_CACHE_HOME", in_the_way.c_str(), 1);
  testing::internal::CaptureStderr();
  const auto chat = MustMake(Packed(path));
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("n.jsonl: what is made of it is kept for this run "
                        "only, as no folder for it can be written"));
  EXPECT_GT(AllIds(*chat).size(), 1000);
  setenv("TMPDIR", in_the_way.c_str(), 1);
  EXPECT_THAT(std::string(Make(Packed(path)).status().message()),
              HasSubstr("n.jsonl: what is made of it can be kept nowhere"));
  unsetenv("TMPDIR");
  unsetenv("XDG_CACHE_HOME");
}

TEST(RowIndexTest, IfTheFolderIsFullTheIndexIsKeptElsewhere) {
  const std::string path = File("full.jsonl", ManyRows());
  const std::string folder =
      (fs::path(path).parent_path() / ".capstan").string();
  fs::create_directories(folder);
  ExpectOnSmallDisk(folder, "8k", [&] {
    setenv("XDG_CACHE_HOME", folder.c_str(), 1);
    testing::internal::CaptureStderr();
    const auto chat = Make(Of(path));
    const std::string notes = testing::internal::GetCapturedStderr();
    // Nothing partial is left there.
    int files = 0;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      files += entry.is_regular_file() && entry.path().filename() != "lock";
    }
    return chat.ok() && (*chat)->size() == 1000 && files == 0 &&
           notes.find("No space left on device") != std::string::npos;
  });
}

// Not even if root could.
TEST(RowIndexTest, AFolderThatNobodyMayWriteIsLeftAlone) {
  const std::string path = File("w.jsonl", ManyRows());
  const fs::path folder = fs::path(path).parent_path();
  const std::string cache = ::testing::TempDir() + "/cache";
  setenv("XDG_CACHE_HOME", cache.c_str(), 1);
  fs::permissions(folder, fs::perms::owner_read | fs::perms::owner_exec);
  EXPECT_EQ(MustMake(Of(path))->size(), 1000);
  fs::permissions(folder, fs::perms::owner_all);
  EXPECT_FALSE(fs::exists(folder / ".capstan"));
  EXPECT_FALSE(fs::is_empty(cache + "/capstan"));
}

TEST(RowIndexTest, AFileThatChangesMeanwhileIsAnError) {
  const std::string path = File("m.jsonl", TextRow("abc") + TextRow("def"));
  const auto chat = MustMake(Of(path));
  std::fstream(path, std::ios::in | std::ios::out) << TextRow("a\\n");
  Batch batch;
  const absl::Status status = chat->Read({0}, &batch);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("m.jsonl:1: the file has changed"));
}

// Of the same length, and with as many tokens.
TEST(RowIndexTest, ARowThatChangesMeanwhileIsAnError) {
  const std::string path = File("s.jsonl", TextRow("abc") + TextRow("def"));
  const auto chat = MustMake(Of(path));
  std::fstream(path, std::ios::in | std::ios::out) << TextRow("abd");
  Batch batch;
  EXPECT_THAT(std::string(chat->Read({0}, &batch).message()),
              HasSubstr("s.jsonl:1: the file has changed"));
  fs::resize_file(path, 3);
  EXPECT_THAT(std::string(chat->Read({0}, &batch).message()),
              HasSubstr("s.jsonl became shorter"));
}

// However the file is cut, with any number of threads.
TEST(RowIndexTest, RowsAndTheFirstErrorDoNotDependOnChunks) {
  std::string text = ManyRows();
  const std::string good = File("g.jsonl", text);
  text.insert(text.find("{\"text\": \"row 700"), "[]\n");
  text.insert(text.find("{\"text\": \"row 600"), "{}\n");
  const std::string bad = File("b.jsonl", text);
  const FakeTokenizer tokenizer({});
  const RowEncoder encoder(&tokenizer, nullptr, absl::OkStatus(), ALL, 100);
  for (uint64_t chunk : {uint64_t{1}, uint64_t{300}, uint64_t{1} << 30}) {
    SourceFile source = *OpenSource(good);
    std::vector<uint64_t> offsets;
    const auto facts = IndexRows(source, {AUTO, ERROR, &encoder, false, chunk},
                                 [&](const IndexedRows& some) {
                                   for (const IndexedRow& row : some.rows) {
                                     offsets.push_back(row.offset);
                                   }
                                   return absl::OkStatus();
                                 });
    ASSERT_TRUE(facts.ok()) << facts.status();
    EXPECT_EQ(facts->rows, 1000);
    EXPECT_EQ(facts->longest, 7);
    EXPECT_EQ(offsets.size(), 1000);
    EXPECT_TRUE(std::is_sorted(offsets.begin(), offsets.end()));
    source = *OpenSource(bad);
    EXPECT_THAT(
        std::string(
            IndexRows(source, {AUTO, ERROR, &encoder, false, chunk},
                      [](const IndexedRows&) { return absl::OkStatus(); })
                .status()
                .message()),
        HasSubstr("b.jsonl:601: is an object without keys"));
  }
}

}  // namespace
}  // namespace capstan::chat
