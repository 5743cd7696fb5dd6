// SPDX-License-Identifier: Apache-2.0
//
// How lanes divide data, of which some are harder to divide than others.
#include "datasets/stream/lanes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <zstd.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "datasets/stream/stream_testing.h"

namespace capstan::stream {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

Shard Of(int64_t cells, int64_t bytes, int64_t weight) {
  Shard shard;
  shard.cells = cells;
  shard.bytes = bytes;
  shard.weight = weight;
  return shard;
}

TEST(LanesTest, EachCellIsInOneLane) {
  const std::vector<Shard> shards = {Of(100, 1000, 5000), Of(1, 9000, 50),
                                     Of(37, 10, 4000), Of(300, 1, 15000)};
  for (const int64_t lanes : {1, 3, 7, 64}) {
    for (const bool shuffle : {false, true}) {
      std::set<std::pair<int64_t, int64_t>> met;
      for (const auto& runs : LanesOfEpoch(shards, {lanes, shuffle, 3}, 2)) {
        for (const CellRun& run : runs) {
          for (int64_t i = 0; i < run.count; ++i) {
            EXPECT_TRUE(met.emplace(run.shard, run.first + i).second);
          }
        }
      }
      EXPECT_EQ(met.size(), 438);
    }
  }
}

// Parquet's bytes in a file tell little of its texts.
TEST(LanesTest, LanesAreCutByWeight) {
  const std::vector<Shard> shards = {Of(100, 1000, 10000),
                                     Of(100, 9000, 10000)};
  const auto lanes = LanesOfEpoch(shards, {2, false, 0}, 0);
  ASSERT_EQ(lanes[0].size(), 1);
  EXPECT_EQ(lanes[0][0].count, 100);
  EXPECT_EQ(lanes[1][0].shard, 1);
}

// How often each row comes within the samples of an epoch.
TEST(LanesTest, AnEpochOfSeveralLanesHasNearlyEachRowOnce) {
  Config config = capstan::stream::Of(NewFolder(), 256);
  std::set<std::string> rows;
  for (int shard = 0; shard < 9; ++shard) {
    std::string lines;
    for (int row = 0; row < 3100; ++row) {
      lines += JsonRow(TextOf(shard, row));
      rows.insert(TextOf(shard, row));
    }
    WriteFile(absl::StrCat(config.path(), "/", shard, ".jsonl"), lines);
  }
  config.set_shuffle(true);
  const auto stream = MustMake(config);
  EXPECT_THAT(stream->notes()[0], HasSubstr("from 4 lanes"));
  std::map<std::string, int> met;
  for (int64_t lane = 0; lane < 4; ++lane) {
    std::vector<int64_t> samples;
    for (int64_t i = lane; i < stream->size(); i += 4) samples.push_back(i);
    for (const std::string& text : TextsIn(MustRead(*stream, samples))) {
      ++met[text];
    }
  }
  int64_t once = 0;
  for (const auto& [text, times] : met) {
    EXPECT_EQ(rows.count(text), 1);
    EXPECT_LE(times, 2);
    once += times == 1;
  }
  EXPECT_GT(once, static_cast<int64_t>(rows.size()) * 95 / 100);
}

// Lanes inside of one document have no token.
TEST(LanesTest, DocumentsThatAreLongerThanALane) {
  Config config = capstan::stream::Of(NewFolder(), 1024);
  std::string rows;
  for (int i = 0; i < 3; ++i) {
    rows += JsonRow(absl::StrCat(i, " ", std::string(12 << 20, 'a' + i)));
  }
  WriteFile(config.path() + "/a.jsonl", rows);
  const auto stream = MustMake(config);
  // 36 MiB would have nine.
  EXPECT_THAT(stream->notes()[0], HasSubstr("from 2 lanes"));
  EXPECT_THAT(stream->notes()[1],
              AllOf(HasSubstr("spread unevenly"), HasSubstr("one has none")));
  EXPECT_NE(MustRead(*stream, {0}), MustRead(*stream, {1}));
  EXPECT_EQ(MustRead(*stream, {2 * (12 << 10)}).size(), 1024);
}

TEST(LanesTest, SaysWhereTextsAreSpreadUnevenly) {
  const auto note = [](bool uneven) {
    const Config config = capstan::stream::Of(NewFolder(), 64);
    for (int shard = 0; shard < 2; ++shard) {
      std::string rows;
      while (rows.size() < 9 << 20) {
        rows += "{\"text\": \"" + std::string(300, 'x') + "\", \"other\": \"" +
                std::string(uneven && shard == 1 ? 1200 : 100, 'y') + "\"}\n";
      }
      WriteFile(absl::StrCat(config.path(), "/", shard, ".jsonl"), rows);
    }
    return MustMake(config)->notes()[1];
  };
  EXPECT_THAT(note(true), AllOf(HasSubstr("spread unevenly"),
                                HasSubstr("times the tokens a byte")));
  EXPECT_THAT(note(false), Not(HasSubstr("spread unevenly")));
}

// The last cell is smaller than the others.
TEST(LanesTest, TokensOfAllCellsAreCounted) {
  const Config config = capstan::stream::Of(NewFolder(), 64);
  std::string rows;
  int64_t tokens = 0;
  for (int row = 0; rows.size() < 278105; ++row) {
    rows += JsonRow(TextOf(0, row));
    tokens += static_cast<int64_t>(TextOf(0, row).size()) + 1;
  }
  WriteFile(config.path() + "/a.jsonl", rows);
  EXPECT_EQ(MustMake(config)->size(), tokens / 64);
}

// One that is longer than a document may be, packed.
TEST(LanesTest, APackedLineThatIsTooLongIsABadRow) {
  Config config = capstan::stream::Of(NewFolder(), 16);
  config.set_lanes(1);
  const std::string rows = JsonRow("before") +
                           JsonRow(std::string(140 << 20, 'x')) +
                           JsonRow("behind");
  std::string packed(ZSTD_compressBound(rows.size()), '\0');
  packed.resize(
      ZSTD_compress(&packed[0], packed.size(), rows.data(), rows.size(), 1));
  WriteFile(config.path() + "/a.jsonl.zst", packed);
  EXPECT_THAT(std::string(Make(config).status().message()),
              AllOf(HasSubstr("a.jsonl.zst"), HasSubstr("a document may have"),
                    HasSubstr("bad_rows: SKIP")));
  config.set_bad_rows(SKIP);
  ::testing::internal::CaptureStderr();
  auto stream = MustMake(config);
  EXPECT_EQ(TextsIn(MustRead(*stream, {0})),
            (std::vector<std::string>{"before", "behind"}));
  stream.reset();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("SKIP has left out rows"));
}

TEST(LanesTest, AFolderOfTwoFormats) {
  const Config config = capstan::stream::Of(NewFolder() + "/with [brackets]");
  std::filesystem::create_directories(config.path());
  WriteFile(config.path() + "/a.bin", std::string(1000, '\0'));
  EXPECT_TRUE(Make(config).ok());
  WriteFile(config.path() + "/a.jsonl", JsonRow("abc"));
  EXPECT_THAT(std::string(Make(config).status().message()),
              AllOf(HasSubstr("two formats"), HasSubstr("a.jsonl"),
                    HasSubstr("a.bin")));
}

TEST(LanesTest, APipeIsNoShard) {
  const Config config = capstan::stream::Of(NewFolder() + "/*.jsonl");
  const std::string path =
      std::filesystem::path(config.path()).parent_path().string() + "/a.jsonl";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(std::string(Make(config).status().message()),
              HasSubstr("a.jsonl"));
}

TEST(LanesTest, ALongNameIsKept) {
  Config config = capstan::stream::Of(NewFolder());
  config.set_cache_folder(NewFolder());
  WriteFile(absl::StrCat(config.path(), "/", std::string(230, 'n'), ".jsonl"),
            JsonRow("abc"));
  MustMake(config);
  int64_t files = 0;
  for (const auto& file :
       std::filesystem::directory_iterator(config.cache_folder())) {
    files += file.path().filename().string().size() > 100;
  }
  EXPECT_EQ(files, 2);
}

TEST(LanesTest, SettingsHaveUpperBounds) {
  Config config = capstan::stream::Of(NewFolder());
  WriteFile(config.path() + "/a.jsonl", JsonRow("abc"));
  config.set_workers(INT64_MAX);
  EXPECT_THAT(std::string(Make(config).status().message()),
              HasSubstr("must be at most 1024"));
  config.clear_workers();
  config.set_sequence_length(INT64_MAX);
  EXPECT_THAT(std::string(Make(config).status().message()),
              HasSubstr("must be at most 16777216"));
}

}  // namespace
}  // namespace capstan::stream
