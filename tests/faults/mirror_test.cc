// SPDX-License-Identifier: Apache-2.0
//
// The state is mirrored in memory that outlives the ranks: a death costs no
// finished step, without a single checkpoint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"
#include "tests/testing/without_times.h"

namespace capstan {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Far more than are done before the last kill, on a busy machine, too.
constexpr int kSteps = 400;
constexpr int kKills = 4;
constexpr char kWeights[] = "/final/model.safetensors";

RunText SmallRun(const std::string& strategy) {
  return RunText()
      .Set("train_data", TextData(CorpusPiece(40 * 32), 32,
                                  "shuffle: true validation_fraction: 0.1"))
      .Strategy(strategy, 2)
      .Batch(2, 8)
      .Train(absl::StrCat("max_steps: ", kSteps, " eval_every: 4"));
}

// Of the lines in metrics.jsonl, whose last may not be whole yet.
int64_t LastStep(const std::string& folder) {
  std::ifstream in(folder + "/metrics.jsonl");
  int64_t last = 0;
  for (std::string line; std::getline(in, line) && !in.eof();) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_object() && json.contains("loss")) last = json["step"];
  }
  return last;
}

// The numbers behind `words`, in order.
std::vector<int64_t> NumbersAfter(const std::string& text,
                                  const std::string& words) {
  std::vector<int64_t> numbers;
  for (const absl::string_view part : absl::StrSplit(text, words)) {
    int64_t number = 0;
    if (absl::SimpleAtoi(part.substr(0, part.find_first_not_of("0123456789")),
                         &number)) {
      numbers.push_back(number);
    }
  }
  return numbers;
}

class MirrorTest : public ::testing::TestWithParam<std::string> {};

TEST_P(MirrorTest, ADeathCostsNoFinishedStep) {
  const std::string straight = MustTrain(SmallRun(GetParam()));
  const RunText run = SmallRun(GetParam())
                          .Output(NewTestFolder("run") + "/out")
                          .Set("launch", "processes: 2 max_restarts: 100");
  const std::string& folder = run.output();
  std::mt19937 random(GetParam().size());
  TrainerOptions options;
  options.timeout = 250.0;
  TrainerProcess process({"--config=" + run.File()}, options);
  std::vector<int64_t> finished;  // the last step in the file at each death
  ASSERT_TRUE(process.WaitForFile(folder + "/metrics.jsonl"));
  while (static_cast<int>(finished.size()) < kKills) {
    const int64_t wanted = LastStep(folder) + 2 + random() % 4;
    ASSERT_TRUE(process.WaitUntil([&] { return LastStep(folder) >= wanted; }));
    // sleeps: a random moment
    usleep(random() % 5000);
    const std::vector<pid_t> ranks = process.Children();
    if (ranks.size() != 2) continue;
    finished.push_back(LastStep(folder));
    kill(ranks[random() % 2], SIGKILL);
    usleep(20000);
  }
  const TrainerResult result = process.Wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(result.all_gone);
  const std::vector<int64_t> restarted =
      NumbersAfter(result.out, "restarted from step ");
  ASSERT_EQ(restarted.size(), finished.size()) << result.out << result.err;
  for (size_t i = 0; i < finished.size(); ++i) {
    // The step whose line is in the file may not be copied yet.
    EXPECT_GE(restarted[i], finished[i] - 1);
  }
  EXPECT_EQ(CheckpointSteps(folder), std::vector<int64_t>{kSteps});
  const Metrics one = ReadMetrics(folder);
  const Metrics other = ReadMetrics(straight);
  for (const char* key : {"step", "loss", "grad_norm", "lr", "tokens"}) {
    EXPECT_EQ(one.Values(key), other.Values(key)) << key;
  }
  EXPECT_EQ(WithoutTimes(one.evals), WithoutTimes(other.evals));
  EXPECT_TRUE(ReadText(folder + kWeights) == ReadText(straight + kWeights));
}

INSTANTIATE_TEST_SUITE_P(All, MirrorTest,
                         ::testing::Values("ddp", "zero2", "fsdp"),
                         [](const auto& info) { return info.param; });

TEST(MirrorEveryTest, ANegativeNumberIsAnError) {
  ExpectOneError(
      RunTrainer(
          {"--config=" + SmallRun("ddp").Train("mirror_every: -1").File()}),
      {"run.pbtxt:", "train.mirror_every", "must not be negative", "-1"});
}

TEST(MirrorEveryTest, WithoutRestartsItIsANote) {
  const RunText run = SmallRun("ddp")
                          .Train("mirror_every: 1 max_steps: 2")
                          .Output(NewTestFolder("run") + "/out");
  const TrainerResult result = RunTrainer({"--config=" + run.File()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("train.mirror_every has no effect"));
  EXPECT_THAT(result.err, Not(HasSubstr("ERROR")));
}

}  // namespace
}  // namespace capstan
