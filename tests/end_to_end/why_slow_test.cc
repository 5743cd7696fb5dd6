// SPDX-License-Identifier: Apache-2.0
//
// Runs that are slowed on purpose, and what `why-slow` says of them. Machines
// differ and have other things to do, so that shares are compared, generously.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;
namespace fs = std::filesystem;

Json WhySlow(const std::string& folder) {
  const TrainerResult result = RunTrainer({"why-slow", "--json", folder});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  Json json = Json::parse(result.out, nullptr, false);
  EXPECT_TRUE(json.is_object()) << result.out;
  return json;
}

// The cause of that name; null if it isn't among them.
Json FindCause(const Json& page, const std::string& name) {
  for (const Json& cause : page["causes"]) {
    if (cause["name"] == name) return cause;
  }
  return Json();
}

// The same, where it must be among them.
Json CauseIn(const Json& page, const std::string& name) {
  Json cause = FindCause(page, name);
  EXPECT_FALSE(cause.is_null()) << name << " isn't found in " << page.dump(2);
  return cause;
}

RunText SmallRun() {
  return RunText()
      .Single()
      .Batch(4, 4)
      .Set("schedule", "")
      .Set("train_data",
           TextData(CorpusPiece(40000), 32, "validation_fraction: 0.3"))
      .Train("max_steps: 60");
}

// What makes `slow` slow is of that name first of all, and `undone`, a run
// without it, takes less time by about what was predicted; on a busy machine at
// one of several tries. Returns what is told of `slow`.
Json ExpectGain(const std::string& name, const RunText& slow,
                const RunText& undone) {
  constexpr int kTries = 4;
  for (int i = 1;; ++i) {
    const Json told = WhySlow(MustTrain(slow));
    const Json without = WhySlow(MustTrain(undone));
    const Json cause = FindCause(told, name);
    const double gain =
        1.0 - without["seconds"].get<double>() / told["seconds"].get<double>();
    if (!cause.is_null() && told["causes"][0] == cause &&
        std::abs(cause["share"].get<double>() - gain) <= 0.3) {
      return told;
    }
    if (i == kTries) {
      ADD_FAILURE() << name << ", gain " << gain << told.dump(2)
                    << without.dump(2);
      return told;
    }
  }
}

TEST(WhySlowTest, EvaluatedTooOften) {
  const Json slow = ExpectGain(
      "evaluation", SmallRun().Train("eval_every: 1 eval_batches: 20"),
      SmallRun().Train("eval_every: 60 eval_batches: 20"));
  EXPECT_THAT(CauseIn(slow, "evaluation")["text"],
              HasSubstr("as it is done after each"));
}

TEST(WhySlowTest, SavedTooOften) {
  const Json slow =
      ExpectGain("saving", SmallRun().Train("save_every: 1 saving: FOREGROUND"),
                 SmallRun());
  EXPECT_THAT(CauseIn(slow, "saving")["advice"],
              HasSubstr("saving: BACKGROUND"));
}

TEST(WhySlowTest, ARankThatIsStoppedNowAndThen) {
  const RunText run = SmallRun()
                          .Ddp(2)
                          .Batch(16, 32)
                          .Train("max_steps: 400")
                          .Output(NewTestFolder("late") + "/out");
  TrainerProcess process({"--config=" + run.File()});
  ASSERT_TRUE(process.WaitForFile(run.output() + "/metrics.jsonl"));
  const std::vector<pid_t> ranks = process.Children();
  ASSERT_EQ(ranks.size(), 2);
  while (process.Running()) {
    kill(ranks[1], SIGSTOP);
    usleep(40000);  // sleeps: a rank that is held up
    kill(ranks[1], SIGCONT);
    usleep(10000);  // sleeps: and goes on
  }
  EXPECT_EQ(process.Wait().exit_code, 0);
  const Json slow = WhySlow(run.output());
  EXPECT_THAT(CauseIn(slow, "late rank")["text"], HasSubstr("rank 1 on "));
  // It is stopped for four fifths of the time.
  EXPECT_GT(CauseIn(slow, "late rank")["share"], 0.3);
}

TEST(WhySlowTest, MoreThreadsThanCores) {
  TrainerOptions options;
  options.environment["OMP_NUM_THREADS"] =
      absl::StrCat(4 * sysconf(_SC_NPROCESSORS_ONLN));
  // Of a size that all threads get a part of.
  const Json slow = WhySlow(MustTrain(
      SmallRun()
          .Set("model",
               "[plugin/capstan.llama.Config] { vocab_size: 256 hidden_size: "
               "256 intermediate_size: 704 num_hidden_layers: 2 "
               "num_attention_heads: 4 max_position_embeddings: 128 }")
          .Batch(16, 16)
          .Train("max_steps: 40"),
      options));
  const Json cause = CauseIn(slow, "too many threads");
  if (cause.is_null()) return;
  EXPECT_THAT(cause["text"], HasSubstr("threads compute on "));
}

TEST(WhySlowTest, SmallBatches) {
  const Json slow = WhySlow(MustTrain(SmallRun().Batch(1, 1)));
  EXPECT_THAT(CauseIn(slow, "small batch")["text"],
              HasSubstr("only 32 tokens"));
  EXPECT_THAT(CauseIn(slow, "small batch")["advice"],
              HasSubstr("instead of 1,"));
}

TEST(WhySlowTest, TheTextForPeople) {
  // As runs/NAME has it, which means its newest run.
  const std::string name = NewTestFolder("name");
  fs::create_directory_symlink(MustTrain(SmallRun()), name + "/latest");
  const TrainerResult result = RunTrainer({"why-slow", name});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* words :
       {"60 steps, ", "Where a step's time goes", "  forward  ",
        "What slows it, by what undoing it would save", "computing: "}) {
    EXPECT_THAT(result.out, HasSubstr(words));
  }
}

TEST(WhySlowTest, AFolderWithoutARun) {
  ExpectOneError(RunTrainer({"why-slow", "/nowhere"}),
                 {"/nowhere", "no run's folder"});
  ExpectOneError(RunTrainer({"why-slow", NewTestFolder("empty")}),
                 {"no run's folder"});
}

}  // namespace
}  // namespace capstan
