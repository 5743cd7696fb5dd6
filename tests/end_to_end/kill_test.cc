// SPDX-License-Identifier: Apache-2.0
//
// A kill at any moment leaves the newest checkpoint whole.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

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

// One run is killed again and again, at moments that differ by fractions of a
// step, while it saves after every step; each time it goes on from there.
TEST(KillTest, TheNewestCheckpointIsWhole) {
  const RunText run = SmallRun().Output(NewTestFolder("run") + "/out");
  const std::string& folder = run.output();
  int64_t newest = 0;
  for (const int delay_ms : {0, 1, 3, 6, 10, 17}) {
    SCOPED_TRACE(absl::StrCat(delay_ms, " ms"));
    TrainerProcess process({"--config=" + run.File()});
    ASSERT_TRUE(process.WaitForFile(absl::StrFormat(
        "%s/checkpoints/step-%08d/manifest.json", folder, newest + 2)))
        << process.Wait().err;
    usleep(delay_ms * 1000);
    // The launcher, or one of the ranks.
    const std::vector<pid_t> ranks = process.Children();
    const int who = delay_ms % 3;
    ASSERT_EQ(ranks.size(), 2);
    kill(who == 0 ? process.pid() : ranks[who - 1], SIGKILL);
    const TrainerResult result = process.Wait();
    EXPECT_TRUE(result.all_gone);
    if (who == 0) {
      EXPECT_EQ(result.term_signal, SIGKILL);
    } else {
      EXPECT_EQ(result.exit_code, 1);
    }
    const std::vector<int64_t> steps = CheckpointSteps(folder);
    ASSERT_FALSE(steps.empty());
    EXPECT_GE(steps.back(), newest + 2) << "steps are lost";
    newest = steps.back();
  }
  const std::string last = absl::StrCat("max_steps: ", newest + 2);
  MustTrain(RunText(run).Train(last));
  const std::string straight =
      MustTrain(SmallRun().Train(last + " save_every: 0"));
  EXPECT_EQ(ReadMetrics(folder).losses(), ReadMetrics(straight).losses());
  EXPECT_TRUE(ReadText(folder + kWeights) == ReadText(straight + kWeights));
}

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
