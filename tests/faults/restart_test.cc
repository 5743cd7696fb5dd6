// SPDX-License-Identifier: Apache-2.0
//
// launch.max_restarts: ranks that are killed, at any moment, cost nothing but
// time; and what a run does with signals, pipes and terminals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"
#include "tests/testing/without_times.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

// Far more than are done until the second of a run's kills, each of which comes
// after kMostWaited steps at most and the time of a few.
constexpr int kSteps = 80;
constexpr int kMostWaited = 5;
constexpr char kWeights[] = "/final/model.safetensors";

RunText SmallRun(const std::string& strategy, int ranks) {
  return RunText()
      .Set("train_data", TextData(CorpusPiece(40 * 32), 32,
                                  "shuffle: true validation_fraction: 0.1"))
      .Strategy(strategy, ranks)
      .Batch(ranks == 4 ? 1 : 2, 8)
      .Train(absl::StrCat("max_steps: ", kSteps, " eval_every: 10"));
}

RunText Restarting(RunText run, int max_restarts) {
  return run.Output(NewTestFolder("run") + "/out")
      .Train("save_every: 1")
      .Set("launch",
           absl::StrCat("processes: ",
                        absl::StrContains(run.Text(), "processes: 4") ? 4 : 2,
                        " max_restarts: ", max_restarts));
}

int Count(const std::string& text, const std::string& word) {
  int count = 0;
  for (size_t at = 0; (at = text.find(word, at)) != std::string::npos; ++at) {
    ++count;
  }
  return count;
}

// Each start of the ranks anew tells from where, once, unless they were killed
// again before they had done a step.
void ExpectTold(const TrainerResult& result) {
  int starts = 0;
  int steps_done = 0;  // starts that were followed by a step
  int64_t last = -1;
  for (const absl::string_view line : absl::StrSplit(result.err, '\n')) {
    if (!absl::StrContains(line, "starting the ranks again (")) continue;
    int64_t step = 0;
    const std::vector<absl::string_view> parts =
        absl::StrSplit(line, " after step ");
    if (parts.size() == 2) {
      const absl::string_view number = parts[1].substr(0, parts[1].find(';'));
      EXPECT_TRUE(absl::SimpleAtoi(number, &step)) << line;
    }
    if (starts > 0 && step > last) ++steps_done;
    ++starts;
    last = step;
  }
  // The last one has completed the run, by a step if there was one left.
  const bool was_last = absl::StrContains(
      result.out, absl::StrCat("step ", last, "/", last, " "));
  if (starts > 0 && !was_last) ++steps_done;
  const int told = Count(result.out, "restarted from ");
  EXPECT_GE(told, steps_done) << result.err << result.out;
  EXPECT_LE(told, starts) << result.err << result.out;
}

void ExpectSameRun(const std::string& folder, const std::string& straight) {
  const Metrics one = ReadMetrics(folder);
  const Metrics other = ReadMetrics(straight);
  for (const char* key : {"step", "loss", "grad_norm", "lr", "tokens"}) {
    EXPECT_EQ(one.Values(key), other.Values(key)) << key;
  }
  EXPECT_EQ(WithoutTimes(one.evals), WithoutTimes(other.evals));
  // Whole files: too large to print when they differ.
  EXPECT_TRUE(ReadText(folder + kWeights) == ReadText(straight + kWeights));
}

struct Way {
  std::string strategy;
  int ranks;
};

void PrintTo(const Way& way, std::ostream* out) {
  *out << way.strategy << way.ranks;
}

class RestartTest : public ::testing::TestWithParam<Way> {};

// Any rank, in any moment: in a step, in a save, or while the ranks start
// again.
TEST_P(RestartTest, KilledRanksChangeNothing) {
  const auto [strategy, ranks] = GetParam();
  const std::string straight = MustTrain(SmallRun(strategy, ranks));
  const RunText run = Restarting(SmallRun(strategy, ranks), 1000);
  const std::string metrics = run.output() + "/metrics.jsonl";
  std::mt19937 random(ranks * 100 + strategy.size());
  const auto draw = [&random](int below) {
    return static_cast<int>(random() % below);
  };
  TrainerOptions options;
  options.timeout = 250;
  TrainerProcess process({"--config=" + run.File()}, options);
  int kills = 0;
  int in_a_row = 0;
  ASSERT_TRUE(process.WaitForFile(metrics));
  while (kills < 6 && process.Running()) {
    // At most one death without a step, or the third would end the run. The
    // rank that is left may still write one line; and a line is written before
    // the launcher is told of its step: the third one after a death shows that
    // the launcher knows of a step more.
    const int before = CountLines(metrics);
    if (in_a_row > 0 || draw(3) > 0) {
      const int wanted = before + kMostWaited - 2 + draw(3);
      // A restart may take lines back.
      process.WaitUntil([&] { return CountLines(metrics) >= wanted; });
      in_a_row = 0;
    } else {
      ++in_a_row;
      // A random moment, which a fast run's end doesn't come before.
      const double until = process.Seconds() + 1e-6 * draw(300000);
      process.WaitUntil([&] {
        return process.Seconds() >= until ||
               CountLines(metrics) >= before + kMostWaited;
      });
    }
    // sleeps: a random moment
    usleep(draw(5000));
    const std::vector<pid_t> now = process.Children();
    if (now.empty()) continue;
    kill(now[draw(now.size())], SIGKILL);
    ++kills;
    // It takes a moment until the launcher knows.
    usleep(20000);
  }
  const TrainerResult result = process.Wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(result.all_gone);
  EXPECT_THAT(result.err, Not(HasSubstr("ERROR")));
  EXPECT_GE(Count(result.err, "(SIGKILL)"), 2) << result.err;
  ExpectTold(result);
  EXPECT_EQ(Count(result.out, "Capstan: "), 1) << "one banner";
  ExpectSameRun(run.output(), straight);
  EXPECT_EQ(ReadJson(run.output() + "/summary.json")["status"], "completed");
}

INSTANTIATE_TEST_SUITE_P(All, RestartTest,
                         ::testing::Values(Way{"ddp", 2}, Way{"ddp", 4},
                                           Way{"zero2", 2}, Way{"zero2", 4},
                                           Way{"fsdp", 2}, Way{"fsdp", 4}),
                         [](const auto& info) {
                           return absl::StrCat(info.param.strategy,
                                               info.param.ranks);
                         });

TEST(MaxRestartsTest, UsedUpIsAnError) {
  const RunText run =
      Restarting(SmallRun("ddp", 2).Train("max_steps: 1000000"), 1);
  const std::string metrics = run.output() + "/metrics.jsonl";
  TrainerProcess process({"--config=" + run.File()});
  ASSERT_TRUE(process.WaitForFile(metrics));
  for (int i = 0; i < 2; ++i) {
    const int wanted = CountLines(metrics) + 3;
    ASSERT_TRUE(
        process.WaitUntil([&] { return CountLines(metrics) >= wanted; }));
    kill(process.Children()[1], SIGKILL);
    usleep(50000);
  }
  const TrainerResult result = process.Wait();
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_TRUE(result.all_gone);
  EXPECT_THAT(result.err,
              HasSubstr("; starting the ranks again (1 of 1)\nERROR: [rank 1] "
                        "killed by signal 9 (SIGKILL)"));
  EXPECT_THAT(result.err, HasSubstr("; the ranks had been started again once "
                                    "(launch.max_restarts)\n"));
}

TEST(MaxRestartsTest, ANegativeNumberIsAnError) {
  const RunText run = Restarting(SmallRun("ddp", 2), -1);
  ExpectOneError(RunTrainer({"--config=" + run.File()}),
                 {"run.pbtxt:", "launch.max_restarts", "negative", "-1"});
}

TEST(MinProcessesTest, BadValuesAreErrors) {
  const RunText run = Restarting(SmallRun("ddp", 2), 1);
  const auto with = [&run](const std::string& change) {
    return RunTrainer({"--config=" + run.File(), "--set", change});
  };
  ExpectOneError(with("launch.min_processes=3"),
                 {"min_processes", "is 3", "only 2 ranks"});
  ExpectOneError(with("launch.min_processes=-1"),
                 {"min_processes", "must not be negative"});
  const RunText never = Restarting(SmallRun("ddp", 2), 0);
  ExpectOneError(RunTrainer({"--config=" + never.File(), "--set",
                             "launch.min_processes=1"}),
                 {"min_processes", "no effect without max_restarts"});
}

// torchrun and its like start ranks again by themselves.
TEST(MaxRestartsTest, UnderAnotherLauncherItIsANote) {
  const RunText run = Restarting(SmallRun("single", 1), 3);
  TrainerOptions options;
  options.environment = {
      {"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}};
  const TrainerResult result = RunTrainer({"--config=" + run.File()}, options);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("launch.max_restarts isn't used: "));
}

class SavingSignalTest : public ::testing::TestWithParam<int> {};

TEST_P(SavingSignalTest, SavesAndStops) {
  const RunText run = Restarting(
      SmallRun("ddp", 2).Train("max_steps: 1000000 eval_every: 0"), 3);
  const std::string metrics = run.output() + "/metrics.jsonl";
  TrainerProcess process(
      {"--config=" + run.File(), "--set", "train.save_every=0"});
  ASSERT_TRUE(process.WaitUntil([&] { return CountLines(metrics) >= 3; }));
  process.Signal(GetParam());
  const TrainerResult result = process.Wait();
  EXPECT_EQ(result.exit_code, 128 + GetParam()) << result.err;
  EXPECT_TRUE(result.all_gone);
  EXPECT_THAT(result.err, HasSubstr("saved in " + run.output()));
  const std::vector<int64_t> steps = CheckpointSteps(run.output());
  ASSERT_EQ(steps.size(), 1);
  EXPECT_EQ(steps[0], ReadMetrics(run.output()).steps.size());
}

INSTANTIATE_TEST_SUITE_P(All, SavingSignalTest,
                         ::testing::Values(SIGHUP, SIGUSR1, SIGUSR2));

// `trainer | head -1`, and a terminal that is gone.
TEST(ClosedOutputTest, TheRunGoesOn) {
  for (const char* redirection : {"| head -n 1", ">&-", ">&- 2>&-"}) {
    SCOPED_TRACE(redirection);
    const RunText run =
        SmallRun("ddp", 2).Output(NewTestFolder("run") + "/out");
    const std::string command =
        absl::StrCat("OMP_NUM_THREADS=1 ", Runfile("trainer/trainer"),
                     " --config=", run.File(), " 2>&1 ", redirection);
    // head's exit code, if there is one.
    EXPECT_EQ(system(command.c_str()), 0);
    EXPECT_EQ(ReadJson(run.output() + "/summary.json")["status"], "completed");
    EXPECT_THAT(ReadText(run.output() + "/.lock"), Not(HasSubstr("step")));
  }
}

}  // namespace
}  // namespace capstan
