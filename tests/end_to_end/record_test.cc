// SPDX-License-Identifier: Apache-2.0
//
// What a run records about itself as it goes, and what others may ask of it
// meanwhile (train.control).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"
#include "tests/testing/told_end.h"

namespace capstan {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

std::vector<Json> LinesOf(const std::string& path) {
  std::vector<Json> lines;
  std::istringstream text(ReadText(path));
  for (std::string line; std::getline(text, line);) {
    lines.push_back(Json::parse(line));
  }
  return lines;
}

std::vector<Json> Events(const std::string& folder, const std::string& kind) {
  std::vector<Json> events;
  for (const Json& event : LinesOf(folder + "/events.jsonl")) {
    if (event["kind"] == kind) events.push_back(event);
  }
  return events;
}

std::string RankFile(const std::string& folder, int rank) {
  return absl::StrFormat("%s/ranks/rank-%05d.jsonl", folder, rank);
}

double Sum(const std::vector<Json>& lines, const std::string& key) {
  double sum = 0.0;
  for (const Json& line : lines) sum += line.value(key, 0.0);
  return sum;
}

RunText SmallRun() {
  return RunText()
      .Ddp(2)
      .Batch(2, 8)
      .Set("schedule", "")
      .Set("train_data",
           TextData(CorpusPiece(20000), 32, "validation_fraction: 0.1"))
      .Output(NewTestFolder("run") + "/out");
}

TEST(RecordTest, EachRankTellsWhereItsTimeGoes) {
  const std::string folder =
      MustTrain(SmallRun().Train("max_steps: 6 eval_every: 3 save_every: 2"));
  const Metrics metrics = ReadMetrics(folder);
  for (int rank = 0; rank < 2; ++rank) {
    std::vector<Json> lines = LinesOf(RankFile(folder, rank));
    ASSERT_GE(lines.size(), 2);
    const Json facts = lines[0];
    EXPECT_EQ(facts["rank"], rank);
    EXPECT_EQ(facts["world_size"], 2);
    EXPECT_GT(facts["micro_batch_size"], 0);
    EXPECT_EQ(facts["device"], "CPU");
    EXPECT_EQ(facts["first_step"], 0);
    EXPECT_EQ(facts["restart"], 0);
    EXPECT_GE(facts["cores"], 1);
    EXPECT_GE(facts["threads"], 1);
    lines.erase(lines.begin());
    EXPECT_EQ(Sum(lines, "steps"), 6);
    EXPECT_EQ(lines.back()["step"], 6);
    // The phases add up to the steps.
    double phases = 0.0;
    for (const char* key :
         {"data", "forward", "backward", "optimizer", "exposed", "rest"}) {
      EXPECT_GE(Sum(lines, key), 0.0) << key;
      phases += Sum(lines, key);
    }
    const double steps = Sum(lines, "step_seconds");
    EXPECT_NEAR(phases, steps, 0.02 * steps);
    EXPECT_GT(Sum(lines, "forward"), 0.0);
    EXPECT_GT(Sum(lines, "backward"), 0.0);
    EXPECT_LE(Sum(lines, "off_core"), steps);
    EXPECT_GT(Sum(lines, "cpu_seconds"), 0.0);
    EXPECT_GT(lines.back()["rss_bytes"], 1 << 20);
    // As the wall clock: of the steps, and of what is between them.
    double actions = 0.0;
    for (const Json& line : lines) {
      for (const auto& [name, seconds] : line["actions"].items()) {
        actions += seconds.get<double>();
      }
    }
    EXPECT_GT(actions, 0.0);
    EXPECT_LE(actions, Sum(lines, "outside") + 1e-3);
    const double wall =
        lines.back()["time"].get<double>() - facts["time"].get<double>();
    EXPECT_NEAR(steps + Sum(lines, "outside"), wall, 0.05 * wall + 0.05);
  }
  double recorded = 0.0;
  for (const double seconds : metrics.Values("step_seconds")) {
    recorded += seconds;
  }
  std::vector<Json> lines = LinesOf(RankFile(folder, 0));
  EXPECT_NEAR(Sum(lines, "step_seconds"), recorded, 0.1 * recorded);
}

TEST(RecordTest, EventsTellWhatHappened) {
  const RunText run =
      SmallRun().Train("max_steps: 4 eval_every: 2 save_every: 2");
  const std::string folder = MustTrain(run);
  std::vector<Json> events = LinesOf(folder + "/events.jsonl");
  ASSERT_GE(events.size(), 2);
  EXPECT_EQ(events.front()["kind"], "start");
  EXPECT_GT(events.front()["seconds"], 0.0);
  EXPECT_EQ(events.back()["kind"], "end");
  EXPECT_EQ(events.back()["step"], 4);
  EXPECT_THAT(events.back()["text"], HasSubstr("completed"));
  EXPECT_TRUE(std::is_sorted(
      events.begin(), events.end(),
      [](const Json& a, const Json& b) { return a["time"] < b["time"]; }));
  const std::vector<Json> evaluations = Events(folder, "evaluation");
  ASSERT_EQ(evaluations.size(), 2);
  EXPECT_EQ(evaluations[0]["step"], 2);
  EXPECT_THAT(evaluations[0]["text"], HasSubstr("eval_loss "));
  EXPECT_GT(evaluations[0]["seconds"], 0.0);
  const std::vector<Json> saves = Events(folder, "save");
  ASSERT_EQ(saves.size(), 2);
  EXPECT_THAT(saves[0]["text"], HasSubstr("step-00000002"));
  // Each line of metrics.jsonl says when it was written.
  const Metrics metrics = ReadMetrics(folder);
  const std::vector<double> times = metrics.Values("time");
  ASSERT_EQ(times.size(), 4);
  EXPECT_GE(times.front(), events.front()["time"].get<double>());
  EXPECT_LE(times.back(), events.back()["time"].get<double>());
  EXPECT_TRUE(metrics.evals[0].contains("time"));

  // A resumed run drops nothing, and begins with a line of facts of its own.
  MustTrain(RunText(run).Train("max_steps: 6 resume: AUTO"));
  std::vector<Json> more = LinesOf(folder + "/events.jsonl");
  ASSERT_GT(more.size(), events.size());
  EXPECT_EQ(more[events.size()]["kind"], "resume");
  EXPECT_EQ(more[events.size()]["step"], 4);
  more.resize(events.size());
  EXPECT_EQ(more, events);
  std::vector<Json> firsts;
  for (const Json& line : LinesOf(RankFile(folder, 1))) {
    if (line.contains("first_step")) firsts.push_back(line["first_step"]);
  }
  EXPECT_THAT(firsts, ElementsAre(0, 4));
  // Nothing of train.control, which is off.
  EXPECT_FALSE(std::ifstream(folder + "/control.jsonl").good());
}

TEST(RecordTest, ARunThatFailsSaysSo) {
  RunText run = SmallRun().Train("max_steps: 50");
  run.Set("optimizer", "[plugin/capstan.adamw.Config] { learning_rate: 1e30 }");
  const TrainerResult result = RunTrainer({"--config=" + run.File()});
  ASSERT_NE(result.exit_code, 0);
  const std::vector<Json> ends = Events(run.output(), "end");
  ASSERT_EQ(ends.size(), 1);
  EXPECT_THAT(ends[0]["text"], HasSubstr("failed: "));
}

class ControlTest : public ::testing::Test {
 protected:
  // Far more steps than the test takes.
  explicit ControlTest(const std::string& more = "")
      : run_(SmallRun().Train(absl::StrCat(kUntilTold, " ", more))),
        folder_(run_.output()) {}

  static int Steps(const std::string& folder) {
    return CountLines(folder + "/metrics.jsonl");
  }
  void Ask(const std::string& line) const {
    std::ofstream(folder_ + "/control.jsonl", std::ios::app) << line << "\n";
  }
  // Waits for the answer to `id`, and returns it.
  std::string Answer(TrainerProcess& process, const std::string& id) const {
    std::string text;
    EXPECT_TRUE(process.WaitUntil([&] {
      std::ifstream file(folder_ + "/events.jsonl");
      for (std::string line; std::getline(file, line);) {
        const Json event = Json::parse(line, nullptr, false);
        if (event.is_object() && event.value("id", "") == id) {
          EXPECT_EQ(event["kind"], "control");
          text = event["text"];
        }
      }
      return !text.empty();
    })) << process.Err();
    return text;
  }

  const RunText run_;
  const std::string folder_;
};

TEST_F(ControlTest, SavesAndStopsAndCanBeResumed) {
  TrainerProcess process({"--config=" + run_.File()});
  ASSERT_TRUE(process.WaitUntil([this] { return Steps(folder_) >= 2; }));
  Ask(R"({"id": "s", "do": "save"})");
  EXPECT_THAT(Answer(process, "s"), HasSubstr("being saved"));
  Ask(R"({"id": "n", "do": "sing"})");
  EXPECT_THAT(Answer(process, "n"), HasSubstr("refused: "));
  const int before = Steps(folder_);
  ASSERT_TRUE(process.WaitUntil([&] { return Steps(folder_) >= before + 2; }));
  Ask(R"({"id": "e", "do": "max_steps", "value": 999999})");
  EXPECT_THAT(Answer(process, "e"), HasSubstr("ends after step 999999"));
  Ask(R"({"id": "h", "do": "max_steps", "value": 9223372036854775807})");
  EXPECT_THAT(Answer(process, "h"), HasSubstr("refused: a run has at most"));
  Ask(R"({"id": "t", "do": "stop"})");
  const TrainerResult result = process.Wait();
  EXPECT_EQ(result.exit_code, 128 + SIGTERM) << result.err;
  // With the end that it was told.
  EXPECT_THAT(result.err, HasSubstr("go on with: "));
  EXPECT_THAT(result.err, HasSubstr("train.max_steps=999999"));
  const std::vector<Json> stops = Events(folder_, "stop");
  ASSERT_EQ(stops.size(), 1);
  const int64_t step = stops[0]["step"];
  EXPECT_EQ(CheckpointSteps(folder_).back(), step);
  EXPECT_EQ(CheckpointSteps(folder_).size(), 2);
  EXPECT_EQ(ReadJson(folder_ + "/summary.json")["status"], "stopped");

  // What was asked before isn't asked of the resumed run.
  MustTrain(
      RunText(run_).Train(absl::StrCat("resume: AUTO max_steps: ", step + 2)));
  EXPECT_EQ(ReadMetrics(folder_).losses().size(), step + 2);
}

TEST_F(ControlTest, EndsAfterAnotherStep) {
  TrainerProcess process({"--config=" + run_.File()});
  ASSERT_TRUE(process.WaitUntil([this] { return Steps(folder_) >= 3; }));
  Ask(R"({"id": "early", "do": "max_steps", "value": 1})");
  EXPECT_THAT(Answer(process, "early"), HasSubstr("steps already"));
  const int64_t end = EndAfter(Steps(folder_) + 40, folder_, &process);
  const TrainerResult result = process.Wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(
      Events(folder_, "control").back()["text"],
      HasSubstr(absl::StrCat("ends after step ", end, " instead of 1000000")));
  EXPECT_EQ(ReadMetrics(folder_).losses().size(), end);
  EXPECT_EQ(ReadJson(folder_ + "/summary.json")["status"], "completed");
  EXPECT_THAT(CheckpointSteps(folder_), Contains(end));

  // As if it had been so from the start; and a resumed run knows it.
  const std::string straight =
      MustTrain(RunText(run_)
                    .Train(absl::StrCat("max_steps: ", end))
                    .Output(NewTestFolder("straight") + "/out"));
  EXPECT_EQ(ReadMetrics(folder_).losses(), ReadMetrics(straight).losses());
  EXPECT_EQ(ReadText(folder_ + "/final/model.safetensors"),
            ReadText(straight + "/final/model.safetensors"));
}

TEST_F(ControlTest, ARestartKeepsTheNewEnd) {
  const RunText run = RunText(run_)
                          .Train("max_steps: 300 save_every: 20")
                          .Set("launch", "processes: 2 max_restarts: 1");
  TrainerProcess process({"--config=" + run.File()});
  ASSERT_TRUE(process.WaitUntil([this] { return Steps(folder_) >= 1; }));
  Ask(R"({"id": "more", "do": "max_steps", "value": 700})");
  EXPECT_THAT(Answer(process, "more"), HasSubstr("after step 700"));
  Ask(R"({"id": "once", "do": "save"})");
  EXPECT_THAT(Answer(process, "once"), HasSubstr("being saved"));
  ASSERT_TRUE(process.WaitUntil([this] { return Steps(folder_) >= 320; }));
  const std::vector<pid_t> ranks = process.Children();
  ASSERT_EQ(ranks.size(), 2);
  kill(ranks[1], SIGKILL);
  const TrainerResult result = process.Wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(Events(folder_, "restart").size(), 1);
  EXPECT_EQ(ReadMetrics(folder_).losses().size(), 700);
  // What was done isn't done again.
  int answers = 0;
  for (const Json& event : Events(folder_, "control")) {
    answers += event.value("id", "") == "once";
  }
  EXPECT_EQ(answers, 1);
}

// A step that the config wants a profile of is beyond it.
TEST_F(ControlTest, RefusesAnEndThatTheConfigCouldNotHave) {
  const RunText run = RunText(run_).Set("profile", "steps: 900000");
  TrainerProcess process({"--config=" + run.File()});
  ASSERT_TRUE(process.WaitUntil([this] { return Steps(folder_) >= 1; }));
  Ask(R"({"id": "p", "do": "max_steps", "value": 800000})");
  EXPECT_THAT(Answer(process, "p"),
              HasSubstr("refused: profile.steps: must be between 1 and"));
  Ask(R"({"id": "t", "do": "stop"})");
  EXPECT_EQ(process.Wait().exit_code, 128 + SIGTERM);
}

// Told once; the run is trained as without it.
TEST(RecordTest, ARunGoesOnWithoutItsEvents) {
  const RunText run = SmallRun().Train("max_steps: 5");
  std::filesystem::create_directories(run.output() + "/events.jsonl");
  const TrainerResult result = RunTrainer({"--config=" + run.File()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const std::vector<std::string> told =
      absl::StrSplit(result.out, "isn't recorded any more");
  EXPECT_EQ(told.size(), 2) << result.out;
  EXPECT_EQ(ReadMetrics(run.output()).losses().size(), 5);
}

}  // namespace
}  // namespace capstan
