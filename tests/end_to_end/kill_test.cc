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
#include "absl/strings/str_format.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kWeights[] = "/final/model.safetensors";

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
    if (absl::EndsWith(it->path().string(), ".tmp")) return true;
  }
  return false;
}

struct Way {
  std::string strategy;
  int ranks;
};

void PrintTo(const Way& way, std::ostream* out) { *out << way.strategy; }

class KillInASaveTest : public ::testing::TestWithParam<Way> {};

// One run is killed again and again, at moments that differ by fractions of a
// save, which follows each step; each time it goes on from the newest whole
// checkpoint.
TEST_P(KillInASaveTest, TheNewestCheckpointIsWhole) {
  const Way& way = GetParam();
  const RunText base =
      SmallRun().Strategy(way.strategy, way.ranks).Batch(2, 12);
  const RunText run = RunText(base).Output(NewTestFolder("run") + "/out");
  const std::string& folder = run.output();
  int64_t newest = 0;
  int in_a_save = 0;
  int victim = -1;  // all, or a rank
  for (const int delay_us : {0, 300, 700, 1500, 3000}) {
    SCOPED_TRACE(absl::StrCat(delay_us, " us"));
    TrainerProcess process({"--config=" + run.File()});
    ASSERT_TRUE(process.WaitForFile(absl::StrFormat(
        "%s/checkpoints/step-%08d/manifest.json", folder, newest + 2)))
        << process.Wait().err;
    const std::vector<pid_t> ranks = process.Children();
    ASSERT_EQ(ranks.size(), way.ranks);
    while (!Saving(folder)) ASSERT_TRUE(process.Running());
    usleep(delay_us);
    if (victim >= 0) {
      kill(ranks[victim], SIGKILL);
    } else {
      process.Signal(SIGKILL);
      for (const pid_t rank : ranks) kill(rank, SIGKILL);
    }
    const TrainerResult result = process.Wait();
    EXPECT_TRUE(result.all_gone);
    if (victim >= 0) {
      EXPECT_EQ(result.exit_code, 1);
    } else {
      EXPECT_EQ(result.term_signal, SIGKILL);
      in_a_save += Saving(folder);
    }
    victim = victim + 1 < way.ranks ? victim + 1 : -1;
    const std::vector<int64_t> steps = CheckpointSteps(folder);
    ASSERT_FALSE(steps.empty());
    EXPECT_GE(steps.back(), newest + 2) << "steps are lost";
    newest = steps.back();
  }
  EXPECT_GT(in_a_save, 0) << "no kill has hit a save";
  const std::string last = absl::StrCat("max_steps: ", newest + 2);
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
    EXPECT_LT(result.seconds - before, 5.0);
    EXPECT_EQ(result.exit_code, 1);
    ExpectOneError(result, {absl::StrCat("rank ", victim), "SIGKILL"});
  }
}

}  // namespace
}  // namespace capstan
