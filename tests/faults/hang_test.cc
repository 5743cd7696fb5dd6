// SPDX-License-Identifier: Apache-2.0
//
// Ranks that hang: who is late, in what, and how the run goes on or ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"
#include "tests/testing/trainer_process.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kHungExitCode = 75;
constexpr double kFloor = 3.0;

// A run of more steps than are done before the test ends it.
RunText ThreeRanks(const std::string& train) {
  return RunText()
      .Ddp(3)
      .Batch(1, 3)
      .Train(absl::StrCat("max_steps: 1000000 log_every: 1 "
                          "hang_floor_seconds: ",
                          kFloor, " ", train))
      .Output(NewTestFolder("run") + "/out");
}

int MetricsLines(const RunText& run) {
  return CountLines(run.output() + "/metrics.jsonl");
}

// Waits until the run has done some steps more.
bool Trains(TrainerProcess& trainer, const RunText& run) {
  const int enough = MetricsLines(run) + 20;
  return trainer.WaitUntil([&] { return MetricsLines(run) >= enough; });
}

void ExpectStops(TrainerProcess& trainer) {
  trainer.Signal(SIGTERM);
  const TrainerResult result = trainer.Wait();
  EXPECT_EQ(result.exit_code, 128 + SIGTERM) << result.err;
  EXPECT_TRUE(result.all_gone);
}

// The first losses of the run, undisturbed.
std::vector<double> FirstLosses(const std::string& train, size_t count) {
  const RunText run = ThreeRanks(train);
  TrainerProcess trainer({"--config=" + run.File()});
  const int enough = static_cast<int>(count) + 20;  // not all may be steps
  EXPECT_TRUE(trainer.WaitUntil([&] { return MetricsLines(run) >= enough; }))
      << trainer.Err();
  ExpectStops(trainer);
  std::vector<double> losses = ReadMetrics(run.output()).losses();
  losses.resize(std::min(losses.size(), count));
  return losses;
}

// Seconds until `text` is on standard error; negative: it isn't.
double SecondsUntil(TrainerProcess& trainer, const std::string& text) {
  const double begin = trainer.Seconds();
  const bool there =
      trainer.WaitUntil([&] { return absl::StrContains(trainer.Err(), text); });
  return there ? trainer.Seconds() - begin : -1.0;
}

bool HasThread(pid_t pid, const std::string& name) {
  std::error_code error;  // the process may have ended
  for (fs::directory_iterator it(absl::StrCat("/proc/", pid, "/task"), error),
       end;
       !error && it != end; it.increment(error)) {
    std::ifstream comm(it->path() / "comm");
    std::string found;
    if (std::getline(comm, found) && found == name) return true;
  }
  return false;
}

// That a process has used, in clock ticks.
int64_t CpuTicks(pid_t pid) {
  std::ifstream stat(absl::StrCat("/proc/", pid, "/stat"));
  std::string line;
  std::getline(stat, line);
  // Behind the name, which may hold anything, is the third field; wanted are
  // the 14th and the 15th.
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  std::string field;
  for (int i = 3; i < 14; ++i) fields >> field;
  int64_t user = 0;
  int64_t system = 0;
  fields >> user >> system;
  return user + system;
}

class StoppedRankTest : public ::testing::TestWithParam<int> {};

TEST_P(StoppedRankTest, IsNamedAndGoesOn) {
  const int rank = GetParam();
  const RunText run = ThreeRanks("on_hang: REPORT");
  TrainerProcess trainer({"--config=" + run.File()});
  ASSERT_TRUE(Trains(trainer, run)) << trainer.Err();
  const std::vector<pid_t> ranks = trainer.Children();
  ASSERT_EQ(ranks.size(), 3u);
  kill(ranks[rank], SIGSTOP);
  const double seconds =
      SecondsUntil(trainer, absl::StrCat("rank ", rank, " is late: in "));
  const std::string err = trainer.Err();
  kill(ranks[rank], SIGCONT);
  std::cout << "named after " << seconds << " s: " << err;
  EXPECT_GT(seconds, 0.0) << err;
  // The first steps may have taught a limit above the floor; the ceiling is
  // half an hour.
  EXPECT_LT(seconds, 100.0);
  EXPECT_THAT(err, HasSubstr("WARNING: no step for "));
  EXPECT_THAT(err, HasSubstr("of step "));
  EXPECT_THAT(err, HasSubstr("stopped (SIGSTOP)"));
  EXPECT_THAT(err, HasSubstr(rank == 0 ? "ranks 1, 2 wait in all-reduce "
                                       : "ranks 0, 2 wait in all-reduce "));
  EXPECT_EQ(err.find("WARNING"), err.rfind("WARNING")) << "once";
  EXPECT_TRUE(Trains(trainer, run)) << trainer.Err();
  ExpectStops(trainer);
  const std::vector<double> losses = ReadMetrics(run.output()).losses();
  EXPECT_EQ(losses, FirstLosses("on_hang: REPORT", losses.size()));
}

INSTANTIATE_TEST_SUITE_P(Rank, StoppedRankTest, ::testing::Values(0, 1));

TEST(HangTest, AStoppedRankEndsTheRun) {
  const RunText run = ThreeRanks("");
  TrainerProcess trainer({"--config=" + run.File()});
  ASSERT_TRUE(Trains(trainer, run)) << trainer.Err();
  kill(trainer.Children()[1], SIGSTOP);
  const TrainerResult result = trainer.Wait();
  EXPECT_EQ(result.exit_code, kHungExitCode) << result.err;
  EXPECT_TRUE(result.all_gone);
  EXPECT_THAT(result.err, HasSubstr("rank 1 is late: in "));
  EXPECT_THAT(result.err, HasSubstr("ERROR: nothing has moved for "));
  EXPECT_THAT(result.err, Not(HasSubstr("killed by signal"))) << "one cause";
}

TEST(HangTest, AnEvaluationIsWatchedToo) {
  const RunText run =
      RunText().Train("max_steps: 1").Output(NewTestFolder("run") + "/out");
  MustTrain(run);
  const std::string data = NewTestFolder("data") + "/long.txt";
  std::ofstream(data) << std::string(40 << 20, 'a');
  TrainerProcess trainer({"eval", "--model=" + run.output(), "--data=" + data,
                          "--loss_only", "--set", "train.hang_floor_seconds=2",
                          "--set", "train.hang_ceiling_seconds=3"});
  // Once they have met they are watched.
  std::vector<pid_t> ranks;
  ASSERT_TRUE(trainer.WaitUntil([&] {
    ranks = trainer.Children();
    return ranks.size() == 2 && HasThread(ranks[0], "watchdog") &&
           HasThread(ranks[1], "watchdog");
  })) << trainer.Err();
  // What takes time from there on is the evaluation.
  const int64_t ticks = CpuTicks(ranks[1]);
  ASSERT_TRUE(
      trainer.WaitUntil([&] { return CpuTicks(ranks[1]) >= ticks + 20; }));
  kill(ranks[1], SIGSTOP);
  const TrainerResult result = trainer.Wait();
  EXPECT_EQ(result.exit_code, kHungExitCode) << result.err;
  EXPECT_THAT(result.err, HasSubstr("rank 1 is late: in evaluation for "));
  EXPECT_TRUE(result.all_gone);
}

TEST(HangTest, AStopOfAllIsNoAlarm) {
  const RunText run = ThreeRanks("");
  TrainerProcess trainer({"--config=" + run.File()});
  ASSERT_TRUE(Trains(trainer, run)) << trainer.Err();
  const std::vector<pid_t> ranks = trainer.Children();
  for (const pid_t rank : ranks) kill(rank, SIGSTOP);
  sleep(10);
  for (const pid_t rank : ranks) kill(rank, SIGCONT);
  EXPECT_TRUE(Trains(trainer, run)) << trainer.Err();
  EXPECT_THAT(trainer.Err(), Not(HasSubstr("WARNING")));
  ExpectStops(trainer);
}

TEST(HangTest, NoRankOutlivesTheLauncher) {
  const RunText run = ThreeRanks("");
  TrainerProcess trainer({"--config=" + run.File()});
  ASSERT_TRUE(Trains(trainer, run)) << trainer.Err();
  kill(trainer.Children()[2], SIGSTOP);
  trainer.Signal(SIGKILL);
  EXPECT_TRUE(trainer.Wait().all_gone);
  for (const auto& entry : fs::directory_iterator("/dev/shm")) {
    EXPECT_THAT(entry.path().string(), Not(HasSubstr("capstan")));
  }
}

// A strategy of this repository's tests hangs in the third step.
TrainerResult RunHanging(const std::string& fault, int ranks, int rank,
                         const TrainerOptions& options = {}) {
  const RunText run =
      RunText()
          .Strategy(absl::StrCat("[plugin/acme.hanging.Config] { fault: ",
                                 fault, " rank: ", rank, " step: 3 }"),
                    ranks)
          .Batch(1, ranks)
          .Train("hang_floor_seconds: 2 hang_ceiling_seconds: 30")
          .Output(NewTestFolder("run") + "/out");
  const fs::path library = Runfile("tests/plugins/acme/libacme_hanging.so");
  const TrainerResult result =
      RunTrainer({"--config=" + run.File(),
                  "--plugin_path=" + library.parent_path().string()},
                 options);
  EXPECT_EQ(result.exit_code, kHungExitCode) << result.err;
  EXPECT_TRUE(result.all_gone);
  return result;
}

TEST(HangTest, APluginThatLoopsForEver) {
  const std::string err = RunHanging("SPIN", 3, 2).err;
  EXPECT_THAT(err, HasSubstr("rank 2 is late: in backward of step 3 for "));
  EXPECT_THAT(err, HasSubstr("computing; ranks 0, 1 wait in all-reduce "));
  EXPECT_THAT(err, HasSubstr(" of bucket 0 ("));
  EXPECT_THAT(err, HasSubstr("stacks of rank 2:"));
  EXPECT_THAT(err, HasSubstr("SpinsForEver"));
  EXPECT_THAT(err, HasSubstr("libacme_hanging.so"));
}

TEST(HangTest, ASystemCallThatNeverReturns) {
  const std::string err = RunHanging("SLEEP", 2, 0).err;
  EXPECT_THAT(err, HasSubstr("rank 0 is late: in backward of step 3 for "));
  EXPECT_THAT(err, HasSubstr("waiting in the system"));
  EXPECT_THAT(err, HasSubstr("pause"));
}

TEST(HangTest, ARankAlone) {
  const std::string err = RunHanging("SPIN", 1, 0).err;
  EXPECT_THAT(err, HasSubstr("rank 0 is late: in backward of step 3 for "));
  EXPECT_THAT(err, HasSubstr("SpinsForEver"));
}

// Shared memory compares what it carries, and fails at once; Gloo waits.
TEST(HangTest, CollectivesThatDiffer) {
  TrainerOptions options;
  options.environment["CAPSTAN_CPU_COLLECTIVES"] = "gloo";
  const std::string err = RunHanging("DIVERGE", 3, 2, options).err;
  EXPECT_THAT(err, HasSubstr("the ranks' collectives differ: "));
  EXPECT_THAT(err, HasSubstr("ranks 0, 1 wait in all-reduce "));
  EXPECT_THAT(err, HasSubstr("rank 2 waits in all-gather "));
}

TEST(HangTest, SettingsThatCannotBe) {
  for (const auto& [fields, word] :
       {std::pair<const char*, const char*>{"hang_floor_seconds: -1",
                                            "hang_floor_seconds"},
        {"hang_ceiling_seconds: -1", "hang_ceiling_seconds"},
        {"hang_floor_seconds: 30 hang_ceiling_seconds: 20",
         "hang_ceiling_seconds"},
        {"hang_ceiling_seconds: 1e300", "hang_ceiling_seconds"}}) {
    const RunText run =
        RunText().Train(fields).Output(NewTestFolder("run") + "/out");
    ExpectOneError(RunTrainer({"--config=" + run.File()}),
                   {"run.pbtxt:", "train.", word});
  }
}

}  // namespace
}  // namespace capstan
