// SPDX-License-Identifier: Apache-2.0
//
// Profiled steps of a run: the files, the table, and that nothing changes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <set>
#include <string>

#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::HasSubstr;

RunText TwoRanks() { return RunText().Ddp(2).Batch(2, 8); }

// Seconds by phase, of the step itself.
std::map<std::string, double> Phases(const nlohmann::json& profile) {
  std::map<std::string, double> phases;
  for (const nlohmann::json& row : profile["rows"]) {
    if (row["in_step"]) {
      phases[row["phase"]] += row["seconds"].get<double>();
    }
    EXPECT_NEAR(
        row["share"].get<double>(),
        row["seconds"].get<double>() / profile["step_seconds"].get<double>(),
        1e-9);
  }
  return phases;
}

// The profile's times beside metrics.jsonl's of the same steps; "" if they
// agree.
std::string WrongTimes(const nlohmann::json& profile, const Metrics& metrics) {
  const double step = profile["step_seconds"];
  const std::map<std::string, double> phases = Phases(profile);
  double seconds = 0.0, exposed = 0.0;
  for (const int i : {2, 3, 5}) {
    seconds += metrics.Values("step_seconds")[i] / 3;
    exposed += metrics.Values("exposed_seconds")[i] / 3;
  }
  const auto near = [](double a, double b) {
    return std::abs(a - b) <= 0.05 * b + 1e-3;
  };
  if (phases.at("rest") >= 0.25 * step) return "much rest";
  if (!near(step, seconds)) return "the step isn't that of metrics.jsonl";
  if (!near(phases.at("communication exposed"), exposed)) {
    return "communication isn't that of metrics.jsonl";
  }
  return "";
}

// All but what times are; which is returned as WrongTimes does.
std::string CheckProfiledRun() {
  const RunText run = TwoRanks()
                          .Set("profile", "steps: [3, 4, 6]")
                          .Output(NewTestFolder("run") + "/out");
  const TrainerResult result = RunTrainer({"--config=" + run.File()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json profile = ReadJson(run.output() + "/profile.json");
  EXPECT_EQ(profile["steps"], nlohmann::json({3, 4, 6}));
  double sum = 0.0;
  const std::map<std::string, double> phases = Phases(profile);
  for (const auto& [phase, seconds] : phases) {
    EXPECT_GE(seconds, 0.0) << phase;
    sum += seconds;
  }
  for (const char* phase : {"data", "forward", "backward", "optimizer",
                            "communication exposed", "rest"}) {
    EXPECT_EQ(phases.count(phase), 1) << phase;
  }
  const double step = profile["step_seconds"];
  EXPECT_NEAR(sum, step, 0.01 * step);
  EXPECT_THAT(result.out, HasSubstr("profile of steps 3, 4, 6, rank 0"));
  EXPECT_THAT(result.out, HasSubstr("communication exposed"));
  return WrongTimes(profile, ReadMetrics(run.output()));
}

// These steps take milliseconds: on a busy machine a process that pauses
// between two looks at the clock spoils a run.
TEST(ProfileTest, RowsAddUpToTheStep) {
  std::string wrong = CheckProfiledRun();
  for (int more = 0; !wrong.empty() && more < 4; ++more) {
    wrong = CheckProfiledRun();
  }
  EXPECT_EQ(wrong, "") << "in all runs";
}

TEST(ProfileTest, OneTraceARank) {
  const std::string folder =
      MustTrain(TwoRanks().Set("profile", "steps: [2, 5]"));
  for (int rank = 0; rank < 2; ++rank) {
    const nlohmann::json trace =
        ReadJson(folder + (rank == 0 ? "/trace.json" : "/trace.rank1.json"));
    std::set<std::string> names;
    for (const nlohmann::json& event : trace["traceEvents"]) {
      EXPECT_EQ(event["pid"], rank);
      EXPECT_TRUE(event["tid"].is_number_integer());
      names.insert(event["name"].get<std::string>());
      if (event["ph"] == "M") continue;
      ASSERT_EQ(event["ph"], "X");
      EXPECT_GT(event["ts"], 0.0);
      EXPECT_GE(event["dur"], 0.0);
    }
    for (const char* name :
         {"step 2", "step 5", "data", "forward", "backward", "optimizer",
          "communication exposed", "process_name", "thread_name"}) {
      EXPECT_THAT(names, Contains(name));
    }
  }
}

TEST(ProfileTest, LeavesTheRunAsItIs) {
  const std::string plain = MustTrain(TwoRanks());
  const std::string profiled =
      MustTrain(TwoRanks().Set("profile", "steps: [1, 2, 3, 4, 5, 6]"));
  EXPECT_EQ(ReadMetrics(profiled).losses(), ReadMetrics(plain).losses());
  EXPECT_EQ(ReadMetrics(profiled).grad_norms(),
            ReadMetrics(plain).grad_norms());
  EXPECT_FALSE(fs::exists(plain + "/profile.json"));
  EXPECT_FALSE(fs::exists(plain + "/trace.json"));
}

TEST(ProfileTest, StepsBeyondTheRunAreRefused) {
  for (const char* step : {"0", "-1", "7"}) {
    const RunText run =
        RunText()
            .Set("profile", std::string("steps: [2, ") + step + "]")
            .Output(NewTestFolder("run") + "/out");
    ExpectOneError(RunTrainer({"--config=" + run.File()}),
                   {"run.pbtxt:", "profile.steps",
                    "between 1 and the run's last step 6", step});
  }
}

TEST(ProfileTest, ResumedBehindItsSteps) {
  const RunText run =
      TwoRanks().Set("profile", "steps: 2").Train("max_steps: 3 resume: AUTO");
  const std::string folder = MustTrain(run);
  const std::string before = ReadText(folder + "/profile.json");
  const RunText more = RunText(run).Train("max_steps: 5").Output(folder);
  const TrainerResult result = RunTrainer({"--config=" + more.File()});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("has done none of its steps"));
  EXPECT_EQ(ReadText(folder + "/profile.json"), before);
}

}  // namespace
}  // namespace capstan
