// SPDX-License-Identifier: Apache-2.0
//
// A kill at any moment leaves the newest checkpoint whole.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <ostream>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kWeights[] = "/final/model.safetensors";
// Before a watchdog would have noticed.
constexpr double kSoon = 15.0;

RunText SmallRun() {
  return RunText()
      .Set("train_data", TextData(CorpusPiece(40 * 32), 32, "shuffle: true"))
      .Ddp(2)
      .Batch(4, 8)
      .Train("max_steps: 1000000 save_every: 1 resume: AUTO");
}

// Whether a checkpoint is being written, or was when the run was killed.
bool Saving(const std::string& folder) {
  std::error_code error;  // it may vanish
  for (fs::directory_iterator it(folder + "/checkpoints", error), end;
       !error && it != end; it.increment(error)) {
    if (absl::StrContains(it->path().string(), ".tmp-")) return true;
  }
  return false;
}

struct Way {
  std::string strategy;
  int ranks;
};

void PrintTo(const Way& way, std::ostream* out) { *out << way.strategy; }

constexpr int kAllRanks = -1;

class KillInASaveTest : public ::testing::TestWithParam<Way> {
 protected:
  // Starts the run, or goes on with it, and kills `victim`, a rank or all, so
  // long after a save has begun.
  void Kill(const RunText& run, int victim, int delay_us) {
    SCOPED_TRACE(absl::StrCat(delay_us, " us"));
    const std::string& folder = run.output();
    TrainerProcess process({"--config=" + run.File()});
    ASSERT_TRUE(process.WaitUntil([&] {
      return NewestStep(folder) >= newest_ + 2;
    })) << process.Wait().err;
    const std::vector<pid_t> ranks = process.Children();
    ASSERT_EQ(ranks.size(), GetParam().ranks);
    while (!Saving(folder)) ASSERT_TRUE(process.Running());
    // sleeps: the moment under test
    usleep(delay_us);
    if (victim != kAllRanks) {
      kill(ranks[victim], SIGKILL);
    } else {
      process.Signal(SIGKILL);
      for (const pid_t rank : ranks) kill(rank, SIGKILL);
    }
    const TrainerResult result = process.Wait();
    EXPECT_TRUE(result.all_gone);
    if (victim != kAllRanks) {
      EXPECT_EQ(result.exit_code, 1);
    } else {
      EXPECT_EQ(result.term_signal, SIGKILL);
      in_a_save_ += Saving(folder);
    }
    const int64_t newest = NewestStep(folder);
    EXPECT_GE(newest, newest_ + 2) << "steps are lost";
    newest_ = newest;
  }

  int64_t newest_ = 0;
  int in_a_save_ = 0;
};

// One run is killed again and again, at moments that differ by fractions of a
// save, which follows each step; each time it goes on from the newest whole
// checkpoint.
TEST_P(KillInASaveTest, TheNewestCheckpointIsWhole) {
  const Way& way = GetParam();
  const RunText base =
      SmallRun().Strategy(way.strategy, way.ranks).Batch(2, 12);
  const RunText run = RunText(base).Output(NewTestFolder("run") + "/out");
  const std::string& folder = run.output();
  int victim = kAllRanks;
  for (const int delay_us : {0, 300, 700, 1500, 3000}) {
    ASSERT_NO_FATAL_FAILURE(Kill(run, victim, delay_us));
    victim = victim + 1 < way.ranks ? victim + 1 : kAllRanks;
  }
  // On a busy machine a save may be over before the kill.
  for (int more = 0; in_a_save_ == 0 && more < 20; ++more) {
    ASSERT_NO_FATAL_FAILURE(Kill(run, kAllRanks, 0));
  }
  EXPECT_GT(in_a_save_, 0) << "no kill has hit a save";
  const std::string last = absl::StrCat("max_steps: ", newest_ + 2);
  MustTrain(RunText(run).Train(last));
  EXPECT_FALSE(Saving(folder)) << "what was half-written stays";
  const std::string straight =
      MustTrain(RunText(base).Train(last + " save_every: 0"));
  EXPECT_EQ(ReadMetrics(folder).losses(), ReadMetrics(straight).losses());
  EXPECT_TRUE(ReadText(folder + kWeights) == ReadText(straight + kWeights));
}

INSTANTIATE_TEST_SUITE_P(All, KillInASaveTest,
                         ::testing::Values(Way{"ddp", 2}, Way{"zero2", 3},
                                           Way{"fsdp", 2}),
                         [](const auto& info) { return info.param.strategy; });

TEST(KillTest, BeforeTheFirstCheckpoint) {
  const RunText run =
      SmallRun().Train("save_every: 0").Output(NewTestFolder("run") + "/out");
  TrainerProcess process({"--config=" + run.File()});
  ASSERT_TRUE(process.WaitForFile(run.output() + "/metrics.jsonl"));
  usleep(50000);
  process.Signal(SIGKILL);
  EXPECT_TRUE(process.Wait().all_gone);
  const std::string folder = MustTrain(RunText(run).Train("max_steps: 3"));
  EXPECT_EQ(ReadMetrics(folder).steps.size(), 3);
}

// One rank alone is asked to stop: all save and stop together.
TEST(KillTest, SigtermToOneRankStopsTheRun) {
  const RunText run =
      SmallRun().Train("save_every: 0").Output(NewTestFolder("run") + "/out");
  TrainerProcess process({"--config=" + run.File()});
  ASSERT_TRUE(process.WaitForFile(run.output() + "/metrics.jsonl"));
  usleep(200000);
  const std::vector<pid_t> ranks = process.Children();
  ASSERT_EQ(ranks.size(), 2);
  kill(ranks[1], SIGTERM);
  const TrainerResult result = process.Wait();
  EXPECT_EQ(result.exit_code, 128 + SIGTERM);
  EXPECT_THAT(result.err, HasSubstr("stopped after step"));
  EXPECT_THAT(result.err, Not(HasSubstr("ERROR")));
  EXPECT_EQ(CheckpointSteps(run.output()).size(), 1);
}

// The others learn of it and leave; the message names rank and signal.
TEST(KillTest, ARankThatDiesEndsTheRun) {
  for (const int victim : {0, 1, 2}) {
    const RunText run = SmallRun()
                            .Ddp(3)
                            .Batch(2, 6)
                            .Train("save_every: 0")
                            .Output(NewTestFolder("run") + "/out");
    TrainerProcess process({"--config=" + run.File()});
    ASSERT_TRUE(process.WaitForFile(run.output() + "/metrics.jsonl"))
        << process.Wait().err;
    usleep(50000);
    const std::vector<pid_t> ranks = process.Children();
    ASSERT_EQ(ranks.size(), 3);
    kill(ranks[victim], SIGKILL);
    const double before = process.Seconds();
    const TrainerResult result = process.Wait();
    EXPECT_LT(result.seconds - before, kSoon);
    EXPECT_EQ(result.exit_code, 1);
    ExpectOneError(result, {absl::StrCat("rank ", victim), "SIGKILL"});
  }
}

}  // namespace
}  // namespace capstan
