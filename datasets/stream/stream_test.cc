// SPDX-License-Identifier: Apache-2.0
#include "datasets/stream/stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "datasets/stream/stream_testing.h"

namespace capstan::stream {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Shards for four lanes.
class StreamTest : public ::testing::Test {
 protected:
  static constexpr int kShards = 9;
  static constexpr int kRows = 3100;

  static void SetUpTestSuite() {
    folder_ = new std::string(::testing::TempDir() + "/stream_test_shards");
    std::filesystem::remove_all(*folder_);
    std::filesystem::create_directories(*folder_);
    for (int shard = 0; shard < kShards; ++shard) {
      std::string rows;
      for (int row = 0; row < kRows; ++row) rows += JsonRow(TextOf(shard, row));
      WriteFile(absl::StrCat(*folder_, "/", shard, ".jsonl"), rows);
    }
  }

  static Config Shuffled() {
    Config config = Of(*folder_, 256);
    config.set_shuffle(true);
    config.set_seed(5);
    return config;
  }

  // As a rank of `world` reads a run: one micro-batch of two after the other.
  static std::map<int64_t, Ids> SamplesOfRank(const Config& config, int rank,
                                              int world, int64_t from,
                                              int64_t to) {
    const auto stream = MustMake(config);
    std::map<int64_t, Ids> samples;
    for (int64_t at = from + 2 * rank; at < to; at += 2 * world) {
      const Ids both = MustRead(*stream, {at, at + 1});
      samples[at] = Ids(both.begin(), both.begin() + 256);
      samples[at + 1] = Ids(both.begin() + 256, both.end());
    }
    return samples;
  }

  static std::string* folder_;
};
std::string* StreamTest::folder_ = nullptr;

TEST_F(StreamTest, RanksAndWorkersDontChangeTheOrder) {
  Config config = Shuffled();
  config.set_cache_folder(NewFolder());
  const auto whole = SamplesOfRank(config, 0, 1, 0, 4000);
  ASSERT_EQ(whole.size(), 4000);
  for (const int world : {2, 4}) {
    for (const int workers : {0, 1, 4}) {
      // Where nothing is kept yet, and where all is.
      for (const bool fresh : {true, false}) {
        config.set_workers(workers);
        if (fresh) config.set_cache_folder(NewFolder());
        std::map<int64_t, Ids> joined;
        for (int rank = 0; rank < world; ++rank) {
          joined.merge(SamplesOfRank(config, rank, world, 0, 4000));
        }
        EXPECT_TRUE(joined == whole) << world << " ranks, " << workers;
      }
    }
  }
}

TEST_F(StreamTest, GoesOnAtAnySample) {
  Config config = Shuffled();
  config.set_cache_folder(NewFolder());
  const auto stream = MustMake(config);
  // Several epochs.
  const int64_t end = 3 * stream->size();
  std::map<int64_t, Ids> unbroken;
  for (int64_t i = 0; i < end; ++i) unbroken[i] = MustRead(*stream, {i});
  for (const int64_t from : {end - 1, end / 2, int64_t{4001}, int64_t{0}}) {
    // With the index of the run before, with its tokens, and without either.
    for (const int kept : {0, 1, 2}) {
      Config resumed = config;
      if (kept == 1) resumed.set_tokens(ON_THE_FLY);
      if (kept == 2) resumed.set_cache_folder(NewFolder());
      const auto again = MustMake(resumed);
      for (int64_t i = from; i < std::min(from + 70, end); ++i) {
        EXPECT_TRUE(MustRead(*again, {i}) == unbroken[i]) << i;
      }
    }
  }
  // The same reader, backwards.
  for (const int64_t i : {end - 1, end / 3, int64_t{17}, end / 2}) {
    EXPECT_TRUE(MustRead(*stream, {i}) == unbroken[i]) << i;
  }
}

// Each row once, and nothing between them, in all lanes together.
TEST_F(StreamTest, AnEpochHasEachRowOnce) {
  Config config = Shuffled();
  config.set_cache_folder(NewFolder());
  config.set_lanes(1);
  const auto stream = MustMake(config);
  std::multiset<std::string> expected;
  int64_t tokens = 0;
  for (int shard = 0; shard < kShards; ++shard) {
    for (int row = 0; row < kRows; ++row) {
      expected.insert(TextOf(shard, row));
      tokens += static_cast<int64_t>(TextOf(shard, row).size()) + 1;
    }
  }
  std::vector<int64_t> all(static_cast<size_t>(2 * tokens / 256 + 1));
  std::iota(all.begin(), all.end(), 0);
  Ids ids = MustRead(*stream, all);
  const Ids first(ids.begin(), ids.begin() + tokens);
  const Ids second(ids.begin() + tokens, ids.begin() + 2 * tokens);
  ASSERT_EQ(first.back(), kEos);
  const auto texts = TextsIn(first);
  EXPECT_TRUE(std::multiset<std::string>(texts.begin(), texts.end()) ==
              expected);
  const auto later = TextsIn(second);
  EXPECT_TRUE(std::multiset<std::string>(later.begin(), later.end()) ==
              expected);
  EXPECT_FALSE(texts == later);
  // An estimate that is near.
  EXPECT_NEAR(stream->size(), tokens / 256, tokens / 256 / 10);
}

TEST_F(StreamTest, LanesDivideTheData) {
  const auto stream = MustMake(Shuffled());
  EXPECT_THAT(stream->notes()[0], HasSubstr("from 4 lanes"));
  // Of different places: the first samples are of different shards.
  std::set<std::string> shards;
  for (int lane = 0; lane < 4; ++lane) {
    for (const std::string& text :
         TextsIn(MustRead(*stream, {lane, lane + 4, lane + 8}))) {
      const size_t at = text.find("shard ");
      if (at != text.npos) shards.insert(text.substr(at, 8));
    }
  }
  EXPECT_GE(shards.size(), 3);
}

TEST_F(StreamTest, TheSeedChangesTheOrder) {
  Config config = Shuffled();
  const Ids first = MustRead(*MustMake(config), {0, 1, 2, 3});
  EXPECT_EQ(MustRead(*MustMake(config), {0, 1, 2, 3}), first);
  config.set_seed(6);
  EXPECT_NE(MustRead(*MustMake(config), {0, 1, 2, 3}), first);
  config.set_shuffle(false);
  config.set_lanes(1);
  const auto stream = MustMake(config);
  EXPECT_EQ(TextsIn(MustRead(*stream, {0, 1, 2, 3}))[0], TextOf(0, 0));
  EXPECT_EQ(TextsIn(MustRead(*stream, {0, 1, 2, 3}))[1], TextOf(0, 1));
}

// Ranks are forked behind Create, and behind reads of the launcher.
TEST_F(StreamTest, AForkReadsTheSame) {
  Config config = Shuffled();
  config.set_workers(2);
  config.set_cache_folder(NewFolder());
  const auto stream = MustMake(config);
  const Ids before = MustRead(*stream, {0, 1, 2, 3});
  std::vector<int64_t> many(600);
  std::iota(many.begin(), many.end(), 0);
  std::vector<pid_t> forks;
  for (int i = 0; i < 2; ++i) {
    const pid_t fork_pid = fork();
    ASSERT_GE(fork_pid, 0);
    if (fork_pid == 0) {
      const auto ids = Read(*stream, many);
      _exit(ids.ok() && std::equal(before.begin(), before.end(), ids->begin())
                ? 0
                : 1);
    }
    forks.push_back(fork_pid);
  }
  for (const pid_t pid : forks) {
    int status = -1;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(MustRead(*stream, {0, 1, 2, 3}), before);
}

TEST_F(StreamTest, WhatIsKeptMayBeDamagedOrGone) {
  Config config = Shuffled();
  config.set_cache_folder(NewFolder());
  std::vector<int64_t> many(500);
  std::iota(many.begin(), many.end(), 0);
  const Ids good = MustRead(*MustMake(config), many);
  int damaged = 0;
  for (const auto& file :
       std::filesystem::directory_iterator(config.cache_folder())) {
    // Every 997th byte; entries of the index, too.
    std::fstream bytes(file.path(),
                       std::ios::in | std::ios::out | std::ios::binary);
    const auto size =
        static_cast<int64_t>(std::filesystem::file_size(file.path()));
    for (int64_t at = 3; at < size; at += 997) {
      bytes.seekp(at);
      bytes.put('\x55');
    }
    ++damaged;
  }
  EXPECT_GT(damaged, 3);
  EXPECT_TRUE(MustRead(*MustMake(config), many) == good);
  // Cut, as by a full disk.
  for (const auto& file :
       std::filesystem::directory_iterator(config.cache_folder())) {
    std::filesystem::resize_file(file.path(),
                                 std::filesystem::file_size(file.path()) / 2);
  }
  EXPECT_TRUE(MustRead(*MustMake(config), many) == good);
  std::filesystem::remove_all(config.cache_folder());
  EXPECT_TRUE(MustRead(*MustMake(config), many) == good);
}

TEST_F(StreamTest, WhatIsKeptIsntMadeAgain) {
  Config config = Shuffled();
  config.set_cache_folder(NewFolder());
  config.set_workers(0);  // which would make more, as far as they get
  const auto bytes_there = [&] {
    int64_t bytes = 0;
    for (const auto& file :
         std::filesystem::directory_iterator(config.cache_folder())) {
      if (file.path().extension() == ".pack") {
        bytes += static_cast<int64_t>(file.file_size());
      }
    }
    return bytes;
  };
  std::vector<int64_t> many(500);
  std::iota(many.begin(), many.end(), 0);
  MustRead(*MustMake(config), many);
  const int64_t once = bytes_there();
  EXPECT_GT(once, 500 * 256);
  MustRead(*MustMake(config), many);
  EXPECT_EQ(bytes_there(), once);
  // Another tokenizer's tokens are others.
  const auto other = Make(config, "another definition");
  ASSERT_TRUE(other.ok());
  MustRead(**other, many);
  EXPECT_EQ(bytes_there(), 2 * once);
}

TEST_F(StreamTest, SeparateDocuments) {
  Config config = Of(NewFolder(), 8);
  WriteFile(config.path() + "/a.jsonl",
            JsonRow("abc") + JsonRow("defghijkl") + JsonRow("m"));
  config.set_separate_documents(true);
  const auto stream = MustMake(config);
  const std::vector<int64_t> samples = {0, 1};
  EXPECT_THAT(MustRead(*stream, samples, kInputIds),
              ElementsAre('a', 'b', 'c', kEos, 'd', 'e', 'f', 'g',  //
                          'h', 'i', 'j', 'k', 'l', kEos, 'm', kEos));
  EXPECT_THAT(MustRead(*stream, samples, kPositions),
              ElementsAre(0, 1, 2, 3, 0, 1, 2, 3,  //
                          0, 1, 2, 3, 4, 5, 0, 1));
  EXPECT_THAT(MustRead(*stream, samples, kLabels),
              ElementsAre(-100, 'b', 'c', kEos, -100, 'e', 'f', 'g',  //
                          -100, 'i', 'j', 'k', 'l', kEos, -100, kEos));
}

TEST_F(StreamTest, SettingsThatCantBe) {
  Config config = Of(NewFolder());
  EXPECT_THAT(std::string(Make(config).status().message()),
              HasSubstr("without data files"));
  WriteFile(config.path() + "/a.jsonl", JsonRow("abc"));
  config.set_sequence_length(1);
  EXPECT_THAT(std::string(Make(config).status().message()),
              HasSubstr("must be at least 2"));
  config.set_sequence_length(2);
  config.set_lanes(5000);
  EXPECT_THAT(std::string(Make(config).status().message()),
              HasSubstr("must be at most 4096"));
  config.set_lanes(0);
  config.set_token_bytes(3);
  EXPECT_THAT(std::string(Make(config).status().message()),
              HasSubstr("must be 2 or 4"));
  config.set_token_bytes(0);
  config.set_path("");
  EXPECT_THAT(std::string(Make(config).status().message()),
              HasSubstr("name the shards"));
}

}  // namespace
}  // namespace capstan::stream
