// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "trainer/profile/profiler.h"

namespace capstan {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kMs = 1'000'000;

// Milliseconds; own: without what lies within.
ThreadRecord Record(const char* name, const char* outermost, int64_t begin,
                    int64_t end, int64_t own,
                    ThreadRole role = ThreadRole::kTraining, int thread = 0) {
  ThreadRecord r;
  r.record.name = name;
  r.record.outermost = outermost;
  r.record.is_outermost = std::string(name) == outermost;
  r.record.begin_ns = begin * kMs;
  r.record.end_ns = end * kMs;
  r.record.own_ns = own * kMs;
  r.role = role;
  r.thread = thread;
  return r;
}

// 100 ms: data 5, forward 30 of which a wait 4 within attention's 20, backward
// 40 of which 25 by an autograd thread, optimizer 15, a stray scope of 2.
ProfiledStep OneStep(int64_t step) {
  ProfiledStep s;
  s.step = step;
  s.begin_ns = 0;
  s.end_ns = 100 * kMs;
  s.hidden_seconds = 0.012;
  s.records = {
      Record("data", "data", 0, 5, 5),
      Record("communication exposed", "forward", 10, 14, 4),
      Record("attention", "forward", 8, 28, 16),
      Record("forward", "forward", 5, 35, 10),
      Record("stray", "stray", 35, 37, 2),
      Record("backward", "backward", 40, 80, 40),
      Record("attention", "attention", 42, 62, 20, ThreadRole::kAutograd, 1),
      Record("norm", "norm", 62, 67, 5, ThreadRole::kAutograd, 1),
      Record("reduction", "reduction", 50, 60, 10, ThreadRole::kOther, 2),
      Record("optimizer", "optimizer", 80, 95, 15),
  };
  return s;
}

std::vector<std::string> Lines(const StepProfile& profile) {
  std::vector<std::string> lines;
  for (const ProfileRow& row : profile.rows) {
    lines.push_back(row.phase + "/" + row.name + " " +
                    std::to_string(std::lround(1e3 * row.seconds)));
  }
  return lines;
}

double InStep(const StepProfile& profile) {
  double seconds = 0.0;
  for (const ProfileRow& row : profile.rows) {
    if (row.in_step) seconds += row.seconds;
  }
  return seconds;
}

TEST(StepProfileTest, RowsAddUpToTheStep) {
  const StepProfile profile = Summarize({OneStep(3)});
  EXPECT_THAT(profile.steps, ElementsAre(3));
  EXPECT_DOUBLE_EQ(profile.step_seconds, 0.1);
  EXPECT_THAT(
      Lines(profile),
      ElementsAre("data/other 5", "forward/attention 16", "forward/other 10",
                  "backward/attention 20", "backward/other 15",
                  "backward/norm 5", "optimizer/other 15",
                  "communication exposed/forward 4", "rest/other 8",
                  "rest/stray 2", "communication hidden/collectives 12",
                  "other threads/reduction 10"));
  EXPECT_DOUBLE_EQ(InStep(profile), 0.1);
}

TEST(StepProfileTest, SecondsAndCallsAreMeans) {
  ProfiledStep other = OneStep(4);
  other.end_ns = 140 * kMs;
  other.records.push_back(Record("forward", "forward", 100, 140, 40));
  const StepProfile profile = Summarize({OneStep(3), other});
  EXPECT_DOUBLE_EQ(profile.step_seconds, 0.12);
  EXPECT_DOUBLE_EQ(InStep(profile), 0.12);
  for (const ProfileRow& row : profile.rows) {
    if (row.phase == "forward" && row.name == "other") {
      EXPECT_DOUBLE_EQ(row.seconds, 0.03);
      EXPECT_DOUBLE_EQ(row.calls, 1.5);
    }
  }
}

TEST(StepProfileTest, Table) {
  const std::string table = ProfileTable(Summarize({OneStep(3), OneStep(8)}));
  EXPECT_THAT(table, HasSubstr("profile of steps 3, 8, rank 0: 100 ms a step"));
  EXPECT_THAT(
      table,
      HasSubstr("    attention                20.000    20.0 %       1\n"));
  // The phase's line holds its parts.
  EXPECT_THAT(table,
              HasSubstr("  forward                    26.000    26.0 %\n"));
  EXPECT_THAT(table, HasSubstr("12.000    12.0 %       1  beside the step\n"));
  const std::vector<std::string> lines = absl::StrSplit(table, '\n');
  const size_t end = lines[1].find("share") + 5;
  for (size_t i = 2; i + 1 < lines.size(); ++i) {
    EXPECT_EQ(lines[i].find('%') + 1, end) << lines[i];
  }
  EXPECT_THAT(ProfileTable(Summarize({OneStep(3)})),
              HasSubstr("profile of step 3, rank 0"));
}

TEST(StepProfileTest, Json) {
  const json profile = json::parse(ProfileJson(Summarize({OneStep(3)})));
  EXPECT_EQ(profile["steps"], json({3}));
  EXPECT_EQ(profile["step_seconds"], 0.1);
  const json& row = profile["rows"][1];
  EXPECT_EQ(row["phase"], "forward");
  EXPECT_EQ(row["name"], "attention");
  EXPECT_DOUBLE_EQ(row["seconds"], 0.016);
  EXPECT_EQ(row["calls"], 1.0);
  EXPECT_DOUBLE_EQ(row["share"], 0.16);
  EXPECT_EQ(row["in_step"], true);
  EXPECT_EQ(profile["rows"].back()["in_step"], false);
}

TEST(StepProfileTest, Trace) {
  const json trace = json::parse(TraceJson({OneStep(3)}, 5));
  int steps = 0, scopes = 0;
  std::vector<std::string> names;
  for (const json& event : trace["traceEvents"]) {
    EXPECT_EQ(event["pid"], 5);
    if (event["ph"] == "M") {
      names.push_back(event["args"]["name"]);
      continue;
    }
    ASSERT_EQ(event["ph"], "X");
    if (event["name"] == "step 3") {
      ++steps;
      EXPECT_EQ(event["dur"], 100e3);
    } else {
      ++scopes;
    }
    if (event["name"] == "norm") {
      EXPECT_EQ(event["tid"], 1);
      EXPECT_EQ(event["ts"], 62e3);
      EXPECT_EQ(event["dur"], 5e3);
    }
  }
  EXPECT_EQ(steps, 1);
  EXPECT_EQ(scopes, 10);
  EXPECT_THAT(names, ElementsAre("rank 5", "training", "autograd", "other"));
}

}  // namespace
}  // namespace capstan
