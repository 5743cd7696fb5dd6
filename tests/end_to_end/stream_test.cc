// SPDX-License-Identifier: Apache-2.0
//
// Runs on shards: one order for any number of ranks, and the same bits behind a
// kill.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

using ::testing::HasSubstr;

// Ten MiB of JSON lines, for two lanes.
std::string Shards() {
  const std::string folder = NewTestFolder("shards");
  for (int shard = 0; shard < 5; ++shard) {
    std::string rows;
    for (int row = 0; rows.size() < 2 << 20; ++row) {
      absl::StrAppend(&rows, "{\"text\": \"", shard, "-", row, " ",
                      std::string((row * 37) % 400, 'a' + row % 26), "\"}\n");
    }
    WriteText(absl::StrCat(folder, "/", shard, ".jsonl"), rows);
  }
  return folder;
}

RunText RunOn(const std::string& shards, const std::string& more = "") {
  return RunText().Set(
      "train_data",
      absl::StrCat("[plugin/capstan.stream.Config] { path: \"", shards,
                   "/*.jsonl\" sequence_length: 32 shuffle: true seed: 3 ",
                   more, " }"));
}

TEST(StreamRunTest, RanksAndWorkersReadTheSame) {
  const std::string shards = Shards();
  struct Result {
    std::vector<std::string> rows;  // of each step, their digest
    std::vector<double> losses;
  };
  const auto train = [](RunText run) {
    const std::string folder =
        MustTrain(run.Batch(2, 8).Train("max_steps: 30 receipts: true"));
    Result result;
    const std::vector<std::string> lines =
        absl::StrSplit(ReadText(folder + "/receipts.jsonl"), '\n');
    for (const std::string& line : lines) {
      const auto receipt = nlohmann::json::parse(line, nullptr, false);
      if (receipt.contains("rows")) result.rows.push_back(receipt["rows"]);
    }
    result.losses = ReadMetrics(folder).losses();
    return result;
  };
  const Result one = train(RunOn(shards));
  ASSERT_EQ(one.rows.size(), 30);
  for (const int ranks : {2, 4}) {
    for (const char* more : {"", "workers: 0", "workers: 4 tokens: ON_THE_FLY",
                             "workers: 1 cache_folder: \"cache\""}) {
      const Result others = train(RunOn(shards, more).Ddp(ranks));
      EXPECT_EQ(others.rows, one.rows) << ranks << " " << more;
      // Sums of other ranks' parts round otherwise.
      EXPECT_THAT(others.losses, ::testing::Pointwise(
                                     ::testing::DoubleNear(1e-5), one.losses));
    }
  }
}

TEST(StreamRunTest, GoesOnBehindAKill) {
  const std::string shards = Shards();
  const RunText base = RunOn(shards).Ddp(2).Batch(2, 8);
  const RunText run =
      RunText(base)
          .Output(NewTestFolder("run") + "/out")
          .Train("max_steps: 1000000 save_every: 7 resume: AUTO");
  int64_t newest = 0;
  for (int kills = 0; kills < 2; ++kills) {
    TrainerProcess process({"--config=" + run.File()});
    ASSERT_TRUE(process.WaitUntil([&] {
      return NewestStep(run.output()) >= newest + 14;
    })) << process.Wait().err;
    const std::vector<pid_t> ranks = process.Children();
    ASSERT_EQ(ranks.size(), 2);
    process.Signal(SIGKILL);
    for (const pid_t rank : ranks) kill(rank, SIGKILL);
    EXPECT_TRUE(process.Wait().all_gone);
    newest = NewestStep(run.output());
  }
  const std::string last = absl::StrCat("max_steps: ", newest + 20);
  // What is kept may be lost meanwhile, too.
  std::filesystem::remove_all(shards + "/.capstan");
  MustTrain(RunText(run).Train(last));
  const std::string straight =
      MustTrain(RunText(base).Train(last + " save_every: 0"));
  EXPECT_EQ(ReadMetrics(run.output()).losses(), ReadMetrics(straight).losses());
}

TEST(StreamRunTest, AShardThatVanishesIsNamed) {
  const std::string shards = Shards();
  const RunText run = RunOn(shards, "workers: 0")
                          .Train("max_steps: 1000000")
                          .Output(NewTestFolder("run") + "/out");
  TrainerProcess process({"--config=" + run.File()});
  ASSERT_TRUE(process.WaitForFile(run.output() + "/metrics.jsonl"));
  for (int shard = 0; shard < 5; ++shard) {
    std::filesystem::remove(absl::StrCat(shards, "/", shard, ".jsonl"));
  }
  const TrainerResult result = process.Wait();
  ExpectOneError(result, {".jsonl was there when the run began", "resume"});
}

TEST(StreamRunTest, AChangedShardIsOtherData) {
  const std::string shards = Shards();
  const RunText run = RunOn(shards)
                          .Output(NewTestFolder("run") + "/out")
                          .Train("max_steps: 3 save_every: 3 resume: AUTO");
  MustTrain(run);
  // As long as before.
  std::string text = ReadText(shards + "/3.jsonl");
  text[10] = text[10] == 'x' ? 'y' : 'x';
  WriteText(shards + "/3.jsonl", text);
  const TrainerResult result =
      RunTrainer({"--config=" + RunText(run).Train("max_steps: 6").File()});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("train_data"),
                    HasSubstr("5 shards, names, sizes and ends of ")));
  EXPECT_EQ(CheckpointSteps(run.output()), std::vector<int64_t>{3});
}

// A start once compared the ranks' last samples, and tokenized all before them.
TEST(StreamRunTest, AStartReadsLittle) {
  const std::string shards = Shards();
  MustTrain(RunOn(shards).Ddp(2).Batch(2, 8).Train("max_steps: 3"));
  int64_t kept = 0;
  for (const auto& file :
       std::filesystem::directory_iterator(shards + "/.capstan")) {
    if (file.path().extension() == ".pack") {
      kept += static_cast<int64_t>(file.file_size());
    }
  }
  // Eight cells that the start looks at, and some of each lane.
  EXPECT_GT(kept, 1 << 20);
  EXPECT_LT(kept, 9 << 20);  // of 20 MiB
}

TEST(StreamRunTest, SaysWhatItReads) {
  const std::string shards = Shards();
  const RunText run =
      RunOn(shards, "tokens: ON_THE_FLY").Output(NewTestFolder("run") + "/out");
  const TrainerResult result = RunTrainer({"--config=" + run.File()});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(
      result.out + result.err,
      AllOf(HasSubstr("5 shards of JSON lines"), HasSubstr("from 2 lanes"),
            HasSubstr("tokenized on the fly; only their numbers")));
}

}  // namespace
}  // namespace capstan
