// SPDX-License-Identifier: Apache-2.0
//
// What is known of a run by its folder, and what a page is told of it.
#include "desk/watch/run_reader.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "desk/watch/live_runs.h"
#include "desk/watch/run_json.h"
#include "desk/watch/terminal_picture.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using State = RunReader::State;

class RunReaderTest : public ::testing::Test {
 protected:
  RunReaderTest() {
    folder_ = ::testing::TempDir() + "run_XXXXXX";
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    run_ = std::make_unique<RunReader>(folder_, "name");
  }

  void Write(const std::string& name, const std::string& text,
             std::ios::openmode mode = std::ios::app) {
    fs::create_directories(fs::path(folder_ + "/" + name).parent_path());
    std::ofstream(folder_ + "/" + name, mode | std::ios::out) << text;
  }
  static std::string Steps(int first, int last) {
    std::string text;
    for (int step = first; step <= last; ++step) {
      absl::StrAppendFormat(
          &text,
          "{\"step\": %d, \"loss\": %d, \"tokens\": %d, \"step_seconds\": 2, "
          "\"time\": %d}\n",
          step, 1000 - step, 10 * step, 5000 + 2 * step);
    }
    return text;
  }
  void Poll() {
    while (run_->Poll()) {
    }
  }
  Curves Detail(int64_t from, int64_t to, int64_t points) const {
    return RunReader::Detail(folder_, run_->PlaceOf(from), from, to, points);
  }
  double Loss(int step) {
    for (const CurveBucket& bucket : run_->curves().Find("loss")->buckets) {
      if (bucket.at == step / run_->curves().width()) return bucket.mean();
    }
    return NAN;
  }

  std::string folder_;
  std::unique_ptr<RunReader> run_;
};

TEST_F(RunReaderTest, HowFarItIs) {
  Poll();
  EXPECT_EQ(run_->state(), State::kWaiting);
  Write("config.pbtxt", "train {\n  max_steps: 100\n  control: true\n}\n");
  Write("metrics.jsonl", Steps(1, 40) + "{\"step\": 40, \"eval_loss\": 3.5}\n" +
                             "{\"step\": 41, \"loss\": nul");
  Poll();
  EXPECT_EQ(run_->state(), State::kRunning);
  EXPECT_EQ(run_->step(), 40);
  EXPECT_EQ(run_->max_steps(), 100);
  EXPECT_TRUE(run_->control());
  EXPECT_EQ(run_->SecondsLeft(), 60 * 2.0);
  EXPECT_EQ(run_->Latest().at("eval_loss"), 3.5);
  EXPECT_EQ(Loss(40), 960.0);
  // A loss that isn't finite takes the place of the last that was.
  Write("metrics.jsonl", Steps(1, 40) +
                             "{\"step\": 40, \"eval_loss\": 3.5}\n"
                             "{\"step\": 41, \"loss\": null}\n"
                             "{\"step\": 41, \"eval_loss\": 1e308}\n");
  Poll();
  EXPECT_EQ(run_->step(), 41);
  EXPECT_TRUE(
      std::isfinite(run_->curves().Find("eval_loss")->buckets.back().mean()));
  EXPECT_TRUE(std::isnan(run_->Latest().at("loss")));
  EXPECT_EQ(Loss(40), 960.0);
  Write("summary.json", "{\"status\": \"completed\", \"steps\": 41}");
  Poll();
  EXPECT_EQ(run_->state(), State::kEnded);
  EXPECT_EQ(StateText(*run_), "completed");
}

// As one that was killed, by a signal that no process sees: nothing in its
// files says so.
TEST_F(RunReaderTest, ARunWhoseLockIsFreeHasFailed) {
  Write("config.pbtxt", "train {\n  max_steps: 100\n  control: true\n}\n");
  Write(".lock", "host a, process 7\n");
  const int lock = open((folder_ + "/.lock").c_str(), O_RDWR);
  ASSERT_EQ(flock(lock, LOCK_EX), 0);
  Poll();
  EXPECT_EQ(run_->state(), State::kWaiting);
  Write("metrics.jsonl", Steps(1, 40));
  Poll();
  EXPECT_EQ(run_->state(), State::kRunning);
  close(lock);
  Poll();
  EXPECT_EQ(run_->state(), State::kFailed);
  LiveRuns runs({{folder_, "name"}});
  runs.ReadAll();
  const json status = runs.AllJson()[0]["status"];
  EXPECT_EQ(status["state"], "ended");
  EXPECT_EQ(status["text"], "failed");
  EXPECT_EQ(status["control"], false);
  EXPECT_EQ(status["seconds_left"], nullptr);
  EXPECT_THAT(TerminalPicture(runs, 80, 100, /*colors=*/false),
              HasSubstr("failed  step 40 of 100"));
  Write("summary.json", "{\"status\": \"stopped\", \"steps\": 40}");
  Poll();
  EXPECT_EQ(StateText(*run_), "stopped");
}

TEST_F(RunReaderTest, AnEndThatTheRunWasTold) {
  Write("config.pbtxt", "train {\n  max_steps: 100\n}\n");
  Write("metrics.jsonl", Steps(1, 10));
  Write("control.jsonl",
        "{\"id\": \"a\", \"do\": \"max_steps\", \"value\": 60}\n"
        "{\"id\": \"b\", \"do\": \"max_steps\", \"value\": 5}\n");
  Poll();
  EXPECT_EQ(run_->max_steps(), 100) << "it hasn't answered";
  const std::string event = "{\"step\": 10, \"kind\": \"control\", \"id\": ";
  Write("events.jsonl",
        event + "\"a\", \"text\": \"it ends after step 60\"}\n" + event +
            "\"b\", \"text\": \"refused: step 5 is past\"}\n");
  Poll();
  EXPECT_EQ(run_->max_steps(), 60);
  EXPECT_EQ(run_->SecondsLeft(), 50 * 2.0);
  Write("events.jsonl", "{\"step\": 10, \"kind\": \"resume\"}\n");
  Poll();
  EXPECT_EQ(run_->max_steps(), 100) << "a resumed run goes by its config";
}

// Metrics from before they had a time.
TEST_F(RunReaderTest, TimesOfAnOlderRun) {
  std::string text;
  for (int step = 1; step <= 10; ++step) {
    absl::StrAppendFormat(
        &text, "{\"step\": %d, \"loss\": 1, \"step_seconds\": 3}\n", step);
  }
  Write("metrics.jsonl", text);
  Write("config.pbtxt", "train {\n  max_steps: 20\n}\n");
  Poll();
  EXPECT_EQ(run_->SecondsLeft(), 30.0);
}

TEST_F(RunReaderTest, AResumedRunWhoseMetricsWereCut) {
  Write("config.pbtxt", "");
  Write("metrics.jsonl", Steps(1, 50));
  Write("summary.json", "{\"status\": \"stopped\", \"steps\": 50}");
  Write("events.jsonl",
        "{\"step\": 0, \"kind\": \"start\"}\n"
        "{\"step\": 50, \"kind\": \"stop\"}\n");
  // A copy of the folder may have such times.
  std::filesystem::last_write_time(
      folder_ + "/config.pbtxt",
      std::filesystem::last_write_time(folder_ + "/summary.json") +
          std::chrono::seconds(9));
  Poll();
  EXPECT_EQ(run_->state(), State::kEnded);
  Write("metrics.jsonl", Steps(1, 30) + "{\"step\": 31, \"loss\": 7}\n",
        std::ios::trunc);
  Write("events.jsonl",
        "{\"time\": 99999999999, \"step\": 30, \"kind\": \"resume\", "
        "\"text\": \"from step 30\"}\n");
  Poll();
  EXPECT_EQ(run_->step(), 31);
  EXPECT_EQ(Loss(31), 7.0);
  EXPECT_TRUE(std::isnan(Loss(40)));
  EXPECT_EQ(run_->state(), State::kRunning);
  EXPECT_EQ(run_->versions().restarts, 1);
}

TEST_F(RunReaderTest, DamagedFilesAreLeftOut) {
  Write("metrics.jsonl",
        "[]\n{\"loss\": 1}\n\xff\xfe\n{\"step\": -1, \"loss\": 1}\n"
        "{\"step\": 1e300, \"loss\": 1}\n{\"step\": \"1\"}\n" +
            Steps(1, 2) + "{\"step\": 3, \"loss\": null, \"skipped\": true}\n");
  Write("events.jsonl", "nonsense\n{\"kind\": 5, \"step\": []}\n");
  Write("generations.jsonl", "{}\n");
  Write("summary.json", "{");
  Write("config.pbtxt", "}}}\n{\n[plugin/");
  Write("ranks/rank-00000.jsonl", "{\"step\": 1, \"steps\": 0}\n1\n");
  Write("ranks/rank-x.jsonl", "{\"step\": 1, \"steps\": 1}\n");
  Poll();
  EXPECT_EQ(run_->step(), 3);
  EXPECT_EQ(Loss(2), 998.0);
  EXPECT_EQ(run_->curves().Find("skipped")->buckets.size(), 1);
  EXPECT_EQ(run_->ranks().size(), 1);
  absl::optional<RunTold> told;
  const json status = RunJson(*run_, &told)["status"];
  EXPECT_EQ(status["step"], 3);
  EXPECT_EQ(status["unreadable_lines"], 6);
}

// Its number is damaged: it would be the only one at the end of a long axis.
TEST_F(RunReaderTest, AStepFarAheadIsLeftOut) {
  Write("config.pbtxt", "train {\n  max_epochs: 3\n}\n");
  Write("metrics.jsonl",
        "{\"step\": 900000000000000, \"loss\": 1}\n" + Steps(1, 50) +
            "{\"step\": 7000000, \"loss\": 1}\n" + Steps(51, 100));
  Poll();
  EXPECT_EQ(run_->step(), 100);
  EXPECT_EQ(run_->curves().width(), 1);
  EXPECT_EQ(run_->curves().Find("loss")->buckets.size(), 100);
  EXPECT_EQ(run_->unreadable_lines(), 2);
  EXPECT_EQ(run_->versions().restarts, 0);
  EXPECT_EQ(Detail(45, 60, 100).Find("loss")->buckets.size(), 16);
  LiveRuns runs({{folder_, "name"}});
  runs.ReadAll();
  EXPECT_THAT(TerminalPicture(runs, 80, 100, /*colors=*/false),
              AllOf(HasSubstr("2 lines of metrics.jsonl unreadable"),
                    HasSubstr("step 100\n")));
  // At the end of the file, another may follow.
  Write("metrics.jsonl", "{\"step\": 8000, \"loss\": 8}\n");
  Poll();
  EXPECT_EQ(run_->step(), 100);
  EXPECT_EQ(run_->unreadable_lines(), 3);
}

// It resumed from another run's checkpoint, or lost lines.
TEST_F(RunReaderTest, LinesThatGoOnFarAheadAreRead) {
  Write("metrics.jsonl", Steps(500000, 500010) + Steps(2000000, 2000002));
  Poll();
  EXPECT_EQ(run_->step(), 2000002);
  EXPECT_EQ(run_->unreadable_lines(), 0);
  EXPECT_EQ(Detail(500000, 500010, 100).Find("loss")->buckets.size(), 11);
  EXPECT_EQ(Detail(2000000, 2000002, 100).Find("loss")->buckets.size(), 3);
}

TEST_F(RunReaderTest, OnlyTheNewestEventsAndSamplesAreKept) {
  std::string events, samples;
  for (int i = 0; i < 3000; ++i) {
    absl::StrAppend(&events, "{\"step\": ", i, ", \"kind\": \"save\"}\n");
    absl::StrAppend(&samples, "{\"step\": ", i, ", \"prompt\": \"p\", ",
                    "\"text\": \"", std::string(1000, 't'), "\"}\n");
  }
  Write("events.jsonl", events);
  Write("generations.jsonl", samples);
  Poll();
  EXPECT_EQ(run_->events().size(), RunReader::kMostEvents);
  EXPECT_EQ(run_->events().back().step, 2999);
  EXPECT_EQ(run_->samples().back().step, 2999);
  EXPECT_LE(run_->samples().size() * 1001, RunReader::kMostSampleBytes);
}

TEST_F(RunReaderTest, APartOfTheCurvesIsReadAgain) {
  Write("metrics.jsonl", Steps(1, 20000));
  Poll();
  EXPECT_GT(run_->curves().width(), 1);
  const Curves some = Detail(12345, 12350, 1000);
  EXPECT_EQ(some.width(), 1);
  const Curves::Series* const loss = some.Find("loss");
  ASSERT_NE(loss, nullptr);
  ASSERT_EQ(loss->buckets.size(), 6);
  EXPECT_EQ(loss->buckets[0].at, 12345);
  EXPECT_EQ(loss->buckets[0].mean(), 1000.0 - 12345.0);
  EXPECT_EQ(Detail(0, 20000, 100).Find("loss")->buckets.size(), 100);
  EXPECT_EQ(Detail(30000, 40000, 100).Find("loss"), nullptr);
}

TEST_F(RunReaderTest, StepsThatAreTakenAgainReplaceThoseBefore) {
  const std::string again = "\"loss\": -7}\n";
  const auto replaced = [&](int first, int last) {
    std::string text;
    for (int step = first; step <= last; ++step) {
      absl::StrAppend(&text, "{\"step\": ", step, ", ", again);
    }
    return text;
  };
  Write("metrics.jsonl", Steps(1, 1000) + replaced(501, 1500));
  Poll();
  EXPECT_EQ(run_->step(), 1500);
  EXPECT_EQ(Loss(500), 500.0);
  for (const int step : {501, 1000, 1001}) EXPECT_EQ(Loss(step), -7.0) << step;
  EXPECT_EQ(run_->curves().Find("tokens")->buckets.back().at, 500);
  for (const auto& [from, to] : {std::pair(490, 510), {700, 710}}) {
    const Curves some = Detail(from, to, 100);
    const auto& buckets = some.Find("loss")->buckets;
    ASSERT_EQ(buckets.size(), to - from + 1);
    for (const CurveBucket& bucket : buckets) {
      EXPECT_EQ(bucket.mean(), bucket.at > 500 ? -7.0 : 1000.0 - bucket.at);
    }
  }
}

// Rank 2 of 4 computes for 30 ms longer than the others, who wait for it.
TEST_F(RunReaderTest, TheLateRankIsNamed) {
  for (int rank = 0; rank < 4; ++rank) {
    std::string text = absl::StrFormat(
        "{\"time\": 1, \"rank\": %d, \"host\": \"node%d\", \"pid\": 7, "
        "\"device\": \"CPU\", \"restart\": 0}\n",
        rank, rank / 2);
    for (int step = 10; step <= 1000; step += 10) {
      const double data = rank == 2 ? 0.35 : 0.05;
      absl::StrAppendFormat(
          &text,
          "{\"step\": %d, \"steps\": 10, \"step_seconds\": 1.0, \"data\": %f, "
          "\"forward\": 0.2, \"backward\": 0.4, \"optimizer\": 0.05, "
          "\"exposed\": %f, \"rest\": 0.0, \"outside\": 0.5, \"rss_bytes\": "
          "%d, \"actions\": {\"saving\": 0.5}}\n",
          step, data, 0.35 - data, 1000 * (rank + 1));
    }
    Write(absl::StrFormat("ranks/rank-%05d.jsonl", rank), text);
  }
  Poll();
  const RankTimeline timeline = TimelineOf(run_->ranks());
  ASSERT_EQ(timeline.rows.size(), 4);
  EXPECT_NEAR(timeline.rows[2].mean_late, 0.03, 1e-6);
  EXPECT_NEAR(timeline.rows[2].latest_share, 1.0, 1e-6);
  EXPECT_EQ(LateText(run_->ranks(), timeline),
            "rank 2 on node1 is late: it works 30 ms (43 %) longer a step "
            "than the median rank, most of it in data; the others wait for it");
  const json made = RanksJson(run_->ranks());
  EXPECT_EQ(made["rows"][2]["host"], "node1");
  EXPECT_EQ(made["rows"][2]["actions"]["saving"], 50.0);
  EXPECT_NEAR(made["rows"][0]["means"]["outside"], 0.05, 1e-9);
  EXPECT_EQ(made["usage"]["series"]["rss_bytes"]["low"][0], 1000.0);
  EXPECT_EQ(made["usage"]["series"]["rss_bytes"]["high"][0], 4000.0);
}

TEST_F(RunReaderTest, ALateRankMayBeLateInItsRollout) {
  for (int rank = 0; rank < 2; ++rank) {
    Write(absl::StrFormat("ranks/rank-%05d.jsonl", rank),
          absl::StrFormat(
              "{\"step\": 5, \"steps\": 5, \"step_seconds\": 4, \"data\": 0, "
              "\"rollout\": %d, \"forward\": 1, \"backward\": 1, "
              "\"optimizer\": 0, \"exposed\": %d, \"rest\": 0}\n",
              rank + 1, 1 - rank));
  }
  Poll();
  EXPECT_THAT(LateText(run_->ranks(), TimelineOf(run_->ranks())),
              HasSubstr("rank 1 is late: it works 200 ms (33 %) longer a step "
                        "than the median rank, most of it in rollout"));
  EXPECT_EQ(RanksJson(run_->ranks())["rows"][1]["means"]["rollout"], 0.4);
}

// Lines are of 1, 10 and 30 steps; the first, which is slow anyway, is left
// out, as why-slow leaves it out.
TEST_F(RunReaderTest, MeansAreOfStepsAndNotOfLines) {
  for (int rank = 0; rank < 2; ++rank) {
    std::string text = absl::StrFormat("{\"rank\": %d}\n", rank);
    int step = 0;
    for (const auto& [steps, data] :
         std::vector<std::pair<int, double>>{{1, 9.0}, {10, 2.0}, {30, 0.0}}) {
      step += steps;
      absl::StrAppendFormat(
          &text,
          "{\"step\": %d, \"steps\": %d, \"step_seconds\": %f, \"data\": %f, "
          "\"forward\": %f, \"backward\": 0, \"optimizer\": 0, \"exposed\": "
          "%f, \"rest\": 0, \"outside\": 0, \"steal_seconds\": %f}\n",
          step, steps, steps + data, rank == 1 ? data : 0.0, 1.0 * steps,
          rank == 0 ? data : 0.0, data);
    }
    Write(absl::StrFormat("ranks/rank-%05d.jsonl", rank), text);
  }
  Poll();
  const RankTimeline timeline = TimelineOf(run_->ranks());
  ASSERT_EQ(timeline.rows.size(), 2);
  EXPECT_NEAR(timeline.rows[1].means.at("data"), 2.0 / 40, 1e-9);
  EXPECT_NEAR(timeline.rows[0].means.at("exposed"), 2.0 / 40, 1e-9);
  EXPECT_NEAR(timeline.rows[0].means.at("forward"), 1.0, 1e-9);
  EXPECT_NEAR(timeline.rows[0].means.at("steal"), 2.0 / 42, 1e-9);
  EXPECT_THAT(LateText(run_->ranks(), timeline),
              HasSubstr("rank 1 is late: it works 50 ms (5 %) longer"));
}

// Of four ranks a resumed run has two, then three.
TEST_F(RunReaderTest, OnlyTheRanksOfTheNewestProcess) {
  const auto begin = [this](int ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      Write(absl::StrFormat("ranks/rank-%05d.jsonl", rank),
            absl::StrFormat("{\"rank\": %d, \"world_size\": %d, \"pid\": 7}\n"
                            "{\"step\": 5, \"steps\": 5, \"data\": %d, "
                            "\"forward\": 1, \"backward\": 1, "
                            "\"optimizer\": 0.1, \"rest\": 0}\n",
                            rank, ranks, rank == 3 ? 5 : 0));
    }
    Poll();
  };
  begin(4);
  EXPECT_EQ(run_->ranks().size(), 4);
  EXPECT_THAT(LateText(run_->ranks(), TimelineOf(run_->ranks())),
              HasSubstr("rank 3 is late"));
  begin(2);
  EXPECT_EQ(run_->ranks().size(), 2);
  EXPECT_EQ(LateText(run_->ranks(), TimelineOf(run_->ranks())), "");
  begin(3);
  EXPECT_EQ(run_->ranks().size(), 3);
}

TEST_F(RunReaderTest, EqualRanksAreNotLate) {
  for (int rank = 0; rank < 2; ++rank) {
    Write(absl::StrFormat("ranks/rank-%05d.jsonl", rank),
          "{\"step\": 5, \"steps\": 5, \"data\": 0.1, \"forward\": 1, "
          "\"backward\": 1, \"optimizer\": 0.1, \"rest\": 0}\n");
  }
  Poll();
  EXPECT_EQ(LateText(run_->ranks(), TimelineOf(run_->ranks())), "");
}

TEST_F(RunReaderTest, APageIsToldOnlyWhatHasChanged) {
  Write("metrics.jsonl", Steps(1, 20));
  Write("events.jsonl",
        "{\"step\": 10, \"kind\": \"save\", \"text\": \"x\"}\n");
  Poll();
  absl::optional<RunTold> told;
  const json all = RunJson(*run_, &told);
  EXPECT_EQ(all["name"], "name");
  EXPECT_EQ(all["curves"]["series"]["loss"]["at"].size(), 20);
  EXPECT_EQ(all["events"][0]["kind"], "save");
  EXPECT_TRUE(RunJson(*run_, &told).is_null());
  Write("metrics.jsonl", Steps(21, 22));
  Poll();
  const json more = RunJson(*run_, &told);
  EXPECT_EQ(more["status"]["step"], 22);
  EXPECT_EQ(more["curves"]["from"], 20);
  EXPECT_EQ(more["curves"]["series"]["loss"]["at"], json({20, 21, 22}));
  EXPECT_FALSE(more.contains("events"));
}

TEST_F(RunReaderTest, ATerminalGetsNoEscapeSequenceOfARun) {
  Write("metrics.jsonl", Steps(1, 200));
  Write("generations.jsonl",
        "{\"step\": 1, \"prompt\": \"p\", \"text\": \"\\u001b[31m red\"}\n");
  Write("events.jsonl",
        "{\"step\": 7, \"kind\": \"spike\", \"text\": \"6.1 deviations\"}\n");
  LiveRuns runs({{folder_, "some\x1b[2Jname"}});
  runs.ReadAll();
  const std::string picture = TerminalPicture(runs, 80, 100, /*colors=*/false);
  EXPECT_THAT(picture,
              AllOf(HasSubstr("step 200"), HasSubstr("loss"), HasSubstr("red"),
                    HasSubstr("6.1 deviations"), Not(HasSubstr("\x1b"))));
}

// A program, or a file, reads them.
TEST_F(RunReaderTest, WithoutATerminalLinesAreWhole) {
  Write("metrics.jsonl", Steps(1, 200));
  const std::string path(200, 'x');
  Write("events.jsonl",
        "{\"step\": 7, \"kind\": \"save\", \"text\": \"" + path + ".\"}\n");
  LiveRuns runs({{folder_, "name"}});
  runs.ReadAll();
  EXPECT_THAT(TerminalPicture(runs, 80, 100, /*colors=*/false),
              AllOf(HasSubstr(path + ".\n"), Not(HasSubstr(" \n"))));
  EXPECT_THAT(TerminalPicture(runs, 80, 100, /*colors=*/true),
              Not(HasSubstr(path)));
}

TEST_F(RunReaderTest, WithoutColorsRunsAreToldApartByLetters) {
  Write("one/metrics.jsonl", Steps(1, 200));
  Write("two/metrics.jsonl", Steps(1, 100) + "{\"step\": 101, \"loss\": 0}\n");
  const std::vector<std::pair<std::string, std::string>> both = {
      {folder_ + "/one", "first"}, {folder_ + "/two", "second"}};
  LiveRuns runs(both);
  runs.ReadAll();
  const std::string picture = TerminalPicture(runs, 80, 100, /*colors=*/false);
  EXPECT_THAT(picture, AllOf(HasSubstr("a: first\n"), HasSubstr("b: second\n"),
                             HasSubstr("in charts a letter is that run"),
                             Not(HasSubstr("\xe2"))));
  // They meet in the first hundred steps; the second one ends far below.
  EXPECT_THAT(picture, AllOf(HasSubstr("|*****"), HasSubstr("aaaaa\n"),
                             ::testing::ContainsRegex("\\| +b\n")));
  LiveRuns one({both[0]});
  one.ReadAll();
  EXPECT_THAT(TerminalPicture(one, 80, 100, /*colors=*/false),
              AllOf(HasSubstr("\xe2"), ::testing::StartsWith("first\n")));
}

TEST_F(RunReaderTest, ATerminalIsNeverTooSmall) {
  Write("metrics.jsonl", Steps(1, 200));
  std::string events;
  for (int i = 1; i <= 20; ++i) {
    absl::StrAppend(&events, "{\"step\": ", i,
                    ", \"kind\": \"save\", \"text\": \"save", i, ".\"}\n");
  }
  Write("events.jsonl", events);
  LiveRuns runs({{folder_, "name"}});
  runs.ReadAll();
  for (const int lines : {13, 15, 16, 20, 23, 39}) {
    const std::string picture =
        TerminalPicture(runs, 80, lines, /*colors=*/false);
    EXPECT_LE(std::count(picture.begin(), picture.end(), '\n'), lines);
    EXPECT_THAT(picture, AllOf(HasSubstr("step 200"), HasSubstr("\nloss\n")));
    EXPECT_EQ(picture.find("save20.") != std::string::npos, lines >= 16)
        << picture;
  }
  std::vector<std::pair<std::string, std::string>> many(30, {folder_, "name"});
  LiveRuns all(many);
  all.ReadAll();
  const std::string picture = TerminalPicture(all, 80, 23, /*colors=*/false);
  EXPECT_LE(std::count(picture.begin(), picture.end(), '\n'), 23);
  EXPECT_THAT(picture, HasSubstr("\nloss\n"));
}

TEST_F(RunReaderTest, AWarningSaysSoOnce) {
  Write("events.jsonl",
        "{\"step\": 7, \"kind\": \"warning\", \"text\": \"WARNING: hot\"}\n");
  Poll();
  EXPECT_EQ(run_->events().back().text, "hot");
}

class FindRunsTest : public RunReaderTest {};

// Such as those of a sweep.
TEST_F(FindRunsTest, RunsThatBeginLater) {
  Write("a/config.pbtxt", "");
  const auto found = FindRuns({folder_});
  ASSERT_TRUE(found.ok()) << found.status();
  LiveRuns runs(*found, {folder_});
  std::vector<absl::optional<RunTold>> told;
  runs.ReadAll();
  EXPECT_EQ(runs.Next(&told)["index"], 0);
  Write("b/config.pbtxt", "");
  runs.ReadAll();
  ASSERT_EQ(runs.size(), 2);
  const json added = runs.Next(&told);
  EXPECT_EQ(added["index"], 1);
  EXPECT_EQ(added["folder"], folder_ + "/b");
  EXPECT_EQ(runs.Folder(1), folder_ + "/b");
  EXPECT_EQ(runs.Folder(2), absl::nullopt);
}

// Its folder is there before its config.
TEST_F(FindRunsTest, ARunThatIsJustBeginning) {
  std::thread run([this] { Write("config.pbtxt", ""); });
  const auto found = FindRuns({folder_}, std::chrono::minutes(1));
  run.join();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ((*found)[0].first, folder_);
}

TEST_F(FindRunsTest, ARunOrAFolderOfThem) {
  Write("b/config.pbtxt", "");
  Write("a/config.pbtxt", "");
  Write("notes/text", "");
  const auto found = FindRuns({folder_});
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_EQ(found->size(), 2);
  EXPECT_EQ((*found)[0].first, folder_ + "/a");
  EXPECT_EQ((*found)[1].first, folder_ + "/b");
  const auto one = FindRuns({folder_ + "/b/"});
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ((*one)[0].second, fs::path(folder_).filename().string() + "/b");
  EXPECT_THAT(std::string(FindRuns({folder_ + "/notes"}).status().message()),
              HasSubstr("notes isn't a run's folder"));
}

TEST_F(FindRunsTest, OfWhatIsNotThereTheNearestNameIsSaid) {
  Write("my_run/first/config.pbtxt", "");
  const auto error = [this](const std::string& path) {
    return std::string(FindRuns({folder_ + path}).status().message());
  };
  EXPECT_EQ(error("/my_rnu/first"),
            absl::StrCat(folder_, "/my_rnu/first isn't there; did you mean ",
                         folder_, "/my_run/first?"));
  EXPECT_EQ(error("/my_rnu/third"),
            absl::StrCat(folder_, "/my_rnu/third isn't there; did you mean ",
                         folder_, "/my_run?"));
  EXPECT_THAT(error("/elsewhere"),
              HasSubstr("/elsewhere isn't there: start the run first"));
}

}  // namespace
}  // namespace capstan
