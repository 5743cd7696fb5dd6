// SPDX-License-Identifier: Apache-2.0
//
// A signal in the midst of an evaluation or a sample: it is broken off, what
// has been trained is saved, and the run that goes on is the one without it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// The evaluations and samples below take longer; even a busy machine saves in
// far less.
constexpr double kSoon = 20.0;

// What a stopped run says and leaves.
void ExpectStopped(const TrainerResult& result, const std::string& folder,
                   int step) {
  EXPECT_EQ(result.exit_code, 128 + SIGTERM) << result.err;
  EXPECT_TRUE(result.all_gone);
  EXPECT_THAT(result.err, Not(HasSubstr("ERROR")));
  EXPECT_THAT(result.err, HasSubstr(absl::StrCat("stopped after step ", step,
                                                 "; saved in ", folder)));
  EXPECT_THAT(result.err, HasSubstr("go on with: "));
  EXPECT_EQ(CheckpointSteps(folder).back(), step);
  EXPECT_EQ(ReadJson(folder + "/summary.json")["status"], "stopped");
}

// Enough to evaluate on that a signal arrives in between.
std::string LongText() {
  const std::string corpus = ReadText(Runfile("tests/testdata/corpus.txt"));
  std::string text;
  for (int i = 0; i < 40; ++i) text += corpus;
  return WriteText(NewTestFolder("data") + "/text.txt", text);
}

class StopTest : public ::testing::TestWithParam<const char*> {
 protected:
  static RunText SmallRun() {
    return RunText()
        .Strategy(GetParam(), std::string(GetParam()) == "single" ? 1 : 2)
        .Batch(4, 8)
        .Set("schedule", "")
        .Set("train_data",
             TextData(LongText(), 16, "validation_fraction: 0.99"))
        .Output(NewTestFolder("run") + "/out");
  }
};

// The resumed run makes up for the evaluation that was broken off.
TEST_P(StopTest, InAnEvaluation) {
  const RunText run = SmallRun().Train("max_steps: 4 eval_every: 2");
  TrainerProcess process({"--config=" + run.File()});
  const std::string folder = run.output();
  ASSERT_TRUE(process.WaitUntil([&folder] {
    return CountLines(folder + "/metrics.jsonl") >= 2;
  })) << process.Wait().err;
  usleep(300000);
  process.Signal(SIGTERM);
  const double signalled = process.Seconds();
  const TrainerResult result = process.Wait();
  EXPECT_LT(result.seconds - signalled, kSoon);
  ExpectStopped(result, folder, 2);
  EXPECT_THAT(result.err, HasSubstr("--set train.resume=AUTO"));
  EXPECT_EQ(ReadMetrics(folder).evals.size(), 0);

  const char kFew[] = "eval_batches: 20 resume: AUTO";
  MustTrain(RunText(run).Train(kFew));
  const Metrics resumed = ReadMetrics(folder);
  const Metrics straight = ReadMetrics(MustTrain(
      RunText(run).Train(kFew).Output(NewTestFolder("straight") + "/out")));
  EXPECT_EQ(resumed.losses(), straight.losses());
  ASSERT_EQ(resumed.evals.size(), 2);
  ASSERT_EQ(straight.evals.size(), 2);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(resumed.evals[i]["step"], straight.evals[i]["step"]);
    EXPECT_EQ(resumed.evals[i]["eval_loss"], straight.evals[i]["eval_loss"]);
  }
}

// Text goes on where it was broken off, too.
TEST_P(StopTest, InASample) {
  const RunText run = SmallRun().Train(
      "max_steps: 4 eval_every: 2 eval_batches: 2 "
      "sample_prompts: {prompt:\"a\"} sample_max_new_tokens: 4");
  MustTrain(RunText(run).Train("max_steps: 2 sample_prompts: []"));
  const std::string folder = run.output();
  const RunText endless =
      RunText(run).Train("resume: AUTO sample_max_new_tokens: 100000000");
  TrainerProcess process({"--config=" + endless.File()});
  // The sample follows at once.
  ASSERT_TRUE(process.WaitUntil([&process] {
    return absl::StrContains(process.Out(), "resumed at step 2");
  })) << process.Wait().err;
  usleep(500000);
  process.Signal(SIGTERM);
  const double signalled = process.Seconds();
  const TrainerResult result = process.Wait();
  EXPECT_LT(result.seconds - signalled, kSoon);
  ExpectStopped(result, folder, 2);
  EXPECT_FALSE(std::filesystem::exists(folder + "/generations.jsonl"));

  MustTrain(RunText(run).Train("resume: AUTO"));
  EXPECT_EQ(ReadMetrics(folder).losses().size(), 4);
  const std::string texts = ReadText(folder + "/generations.jsonl");
  EXPECT_THAT(texts, HasSubstr("{\"step\":2,"));
  EXPECT_THAT(texts, HasSubstr("{\"step\":4,"));
}

TEST_P(StopTest, BeforeTheFirstStepNothingIsSaved) {
  const RunText endless = SmallRun().Train(
      "max_steps: 4 sample_prompts: {prompt:\"a\"} "
      "sample_max_new_tokens: 100000000");
  TrainerProcess process({"--config=" + endless.File()});
  ASSERT_TRUE(process.WaitForFile(endless.output() + "/config.pbtxt"));
  usleep(500000);
  process.Signal(SIGINT);
  const TrainerResult result = process.Wait();
  EXPECT_EQ(result.exit_code, 128 + SIGINT) << result.err;
  EXPECT_THAT(result.err, HasSubstr("stopped before the first step"));
  EXPECT_TRUE(CheckpointSteps(endless.output()).empty());
}

INSTANTIATE_TEST_SUITE_P(All, StopTest,
                         ::testing::Values("single", "ddp", "fsdp"),
                         [](const auto& info) {
                           return std::string(info.param);
                         });

}  // namespace
}  // namespace capstan
