// SPDX-License-Identifier: Apache-2.0
//
// `trainer track` beside runs that write, are resumed and end, and targets that
// go away and come back.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/free_port_for_test.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/trainer_process.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;
using Json = nlohmann::json;

// What a run writes, by hand: step K has the loss K + 0.5, and each tenth an
// evaluation.
class WrittenRun {
 public:
  WrittenRun() : folder_(NewTestFolder("run")) {
    WriteText(folder_ + "/config.pbtxt",
              "name: \"hand\"\ntrain {\n  max_steps: 1000\n}\n");
  }

  const std::string& folder() const { return folder_; }
  int step() const { return step_; }

  void Steps(int count) {
    for (int i = 0; i < count; ++i) {
      ++step_;
      Append(absl::StrCat(
          "{\"step\": ", step_, ", \"loss\": ", step_,
          ".5, \"step_seconds\": 0.5, \"time\": ", 1.7e9 + step_, "}\n"));
      if (step_ % 10 == 0) Evaluate();
    }
  }
  // As MetricsLog does when a run goes on from a checkpoint.
  void ResumeAfter(int step) {
    std::string kept;
    for (const absl::string_view line :
         absl::StrSplit(ReadText(metrics()), '\n', absl::SkipEmpty())) {
      if (Json::parse(line)["step"] <= step) absl::StrAppend(&kept, line, "\n");
    }
    const std::string hidden = folder_ + "/.metrics.jsonl.new";
    WriteText(hidden, kept);
    ASSERT_EQ(rename(hidden.c_str(), metrics().c_str()), 0);
    step_ = step;
  }
  // Of the newest step.
  void Evaluate() const {
    Append(absl::StrCat("{\"step\": ", step_, ", \"eval_loss\": ", step_,
                        ".25, \"time\": ", 1.7e9 + step_, "}\n"));
  }
  void End(const std::string& status = "completed") const {
    WriteText(folder_ + "/summary.json",
              Json{{"status", status}, {"steps", step_}}.dump());
  }

 private:
  std::string metrics() const { return folder_ + "/metrics.jsonl"; }
  void Append(const std::string& line) const {
    std::ofstream(metrics(), std::ios::app) << line << std::flush;
  }

  const std::string folder_;
  int step_ = 0;
};

std::vector<std::string> TrackWords(const WrittenRun& run,
                                    const std::vector<std::string>& more) {
  std::vector<std::string> words = {"track", run.folder(), "--every=0.02"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

// As MLflow's server, which keeps each metric that it is sent, also one that it
// has, and often fails to answer once it has done what it was asked.
class MlflowStandin {
 public:
  MlflowStandin() : port_(FreePort()) {
    const std::string api = "/api/2.0/mlflow/";
    server_.Get(api + "experiments/get-by-name",
                [](const auto&, auto& response) {
                  response.set_content(
                      R"({"experiment": {"experiment_id": "7"}})", "text/json");
                });
    On(api + "runs/search", [this](const Json& json) {
      const bool there =
          !tag_.empty() && absl::StrContains(json["filter"].dump(), tag_);
      return there ? Json{{"runs", {{{"info", {{"run_id", "r1"}}}}}}} : Json();
    });
    On(api + "runs/create", [this](const Json& json) {
      ++created_;
      for (const Json& tag : json["tags"]) {
        if (tag["key"] == "capstan.run") tag_ = tag["value"];
      }
      return Json{{"run", {{"info", {{"run_id", "r1"}}}}}};
    });
    server_.Get(api + "runs/get", [this](const auto&, auto& response) {
      std::lock_guard<std::mutex> lock(mutex_);
      Json metrics = Json::array();
      for (const auto& [key, points] : points_) {
        metrics.push_back({{"key", key}, {"step", points.back().first}});
      }
      response.set_content(
          Json{{"run", {{"data", {{"metrics", metrics}}}}}}.dump(),
          "text/json");
    });
    On(api + "runs/log-batch", [this](const Json& json) {
      for (const Json& metric : json.value("metrics", Json::array())) {
        EXPECT_EQ(status_, "RUNNING") << metric;
        points_[metric["key"]].emplace_back(metric["step"], metric["value"]);
      }
      return Json::object();
    });
    On(api + "runs/update", [this](const Json& json) {
      status_ = json["status"];
      return Json::object();
    });
    thread_ = std::thread([this] { server_.listen("127.0.0.1", port_); });
    while (!server_.is_running()) std::this_thread::yield();
  }
  ~MlflowStandin() {
    server_.stop();
    thread_.join();
  }

  std::string url() const { return absl::StrCat("http://127.0.0.1:", port_); }
  using Points = std::vector<std::pair<int, double>>;
  Points points(const std::string& metric) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = points_.find(metric);
    return found == points_.end() ? Points() : found->second;
  }
  int created() const { return created_; }
  const std::string& status() const { return status_; }

 private:
  void On(const std::string& path, std::function<Json(const Json&)> handle) {
    server_.Post(path, [this, handle](const auto& request, auto& response) {
      std::lock_guard<std::mutex> lock(mutex_);
      const Json answer = handle(Json::parse(request.body));
      response.set_content(answer.is_null() ? "{}" : answer.dump(),
                           "text/json");
      if (random_() % 4 == 0) response.status = 503;
    });
  }

  const int port_;
  httplib::Server server_;
  std::thread thread_;
  std::mutex mutex_;
  std::string tag_;
  std::string status_;
  int created_ = 0;
  std::minstd_rand random_{7};
  std::map<std::string, Points> points_;
};

MlflowStandin::Points Expected(int steps, int every, double add) {
  MlflowStandin::Points points;
  for (int step = every; step <= steps; step += every) {
    points.emplace_back(step, step + add);
  }
  return points;
}

// The columns of a file that `track` wrote, by name, without empty fields.
std::map<std::string, MlflowStandin::Points> ReadCsv(const std::string& path) {
  std::map<std::string, MlflowStandin::Points> columns;
  const std::vector<std::string> lines =
      absl::StrSplit(ReadText(path), '\n', absl::SkipEmpty());
  const std::vector<std::string> names = absl::StrSplit(lines.at(0), ',');
  for (size_t i = 1; i < lines.size(); ++i) {
    const std::vector<std::string> fields = absl::StrSplit(lines[i], ',');
    EXPECT_THAT(fields, SizeIs(names.size())) << lines[i];
    for (size_t j = 1; j < fields.size(); ++j) {
      double value = 0.0;
      if (!absl::SimpleAtod(fields[j], &value)) continue;
      columns[names[j]].emplace_back(std::stoi(fields[0]), value);
    }
  }
  return columns;
}

// Kills a tracker ten times while the run writes, each time when it has
// `rows()` of the new steps, then lets it end.
void KillTenTimes(WrittenRun* run, const std::vector<std::string>& words,
                  const std::function<int()>& rows) {
  for (int i = 0; i < 10; ++i) {
    const int before = rows();
    run->Steps(7 + i);
    TrainerProcess tracker(words);
    ASSERT_TRUE(tracker.WaitUntil([&] { return rows() > before + i / 2; }))
        << tracker.Err();
    run->Steps(3);
    if (i == 6) run->ResumeAfter(run->step() - 5);
    tracker.Signal(SIGKILL);
    tracker.Wait();
  }
  run->Steps(11);
  run->End();
  const TrainerResult last = RunTrainer(words);
  EXPECT_EQ(last.exit_code, 0) << last.err;
}

TEST(TrackTest, KilledTenTimesCsvHasEachStepOnce) {
  WrittenRun run;
  const std::string csv = run.folder() + "/track/metrics.csv";
  KillTenTimes(&run, TrackWords(run, {"--to=csv"}),
               [&] { return CountLines(csv); });
  auto columns = ReadCsv(csv);
  EXPECT_EQ(columns["loss"], Expected(run.step(), 1, 0.5));
  EXPECT_EQ(columns["eval_loss"], Expected(run.step(), 10, 0.25));
}

TEST(TrackTest, KilledTenTimesMlflowHasEachStepOnce) {
  WrittenRun run;
  MlflowStandin server;
  KillTenTimes(&run, TrackWords(run, {"--to=mlflow", "--url=" + server.url()}),
               [&] { return static_cast<int>(server.points("loss").size()); });
  EXPECT_EQ(server.points("loss"), Expected(run.step(), 1, 0.5));
  EXPECT_EQ(server.points("eval_loss"), Expected(run.step(), 10, 0.25));
  EXPECT_EQ(server.created(), 1);
  EXPECT_EQ(server.status(), "FINISHED");
}

// Its last step came after its end, where more rows had been read at once than
// are sent at once.
// It was stopped before it was due to be evaluated, and sent; then it goes on.
TEST(TrackTest, AnEvaluationOfAStepThatWasSent) {
  WrittenRun run;
  MlflowStandin server;
  const std::vector<std::string> csv = TrackWords(run, {"--to=csv"});
  const std::vector<std::string> mlflow =
      TrackWords(run, {"--to=mlflow", "--url=" + server.url()});
  run.Steps(5);
  run.End("stopped");
  EXPECT_EQ(RunTrainer(csv).exit_code, 0);
  EXPECT_EQ(RunTrainer(mlflow).exit_code, 0);
  run.Evaluate();
  run.Steps(2);
  run.End();
  for (int i = 0; i < 2; ++i) {
    const TrainerResult result = RunTrainer(csv);
    EXPECT_THAT(result.out,
                HasSubstr(absl::StrCat(i == 0 ? "2" : "0", " new steps in ",
                                       run.folder(), "/track/metrics.csv")));
    EXPECT_EQ(RunTrainer(mlflow).exit_code, 0);
  }
  auto columns = ReadCsv(run.folder() + "/track/metrics.csv");
  EXPECT_EQ(columns["loss"], Expected(7, 1, 0.5));
  EXPECT_EQ(columns["eval_loss"], Expected(5, 5, 0.25));
  EXPECT_EQ(server.points("loss"), Expected(7, 1, 0.5));
  EXPECT_EQ(server.points("eval_loss"), Expected(5, 5, 0.25));
}

TEST(TrackTest, ALongRunEndsWithItsLastStep) {
  WrittenRun run;
  run.Steps(2500);
  run.End("failed");
  MlflowStandin server;
  const TrainerResult result =
      RunTrainer(TrackWords(run, {"--to=mlflow", "--url=" + server.url()}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(server.points("loss"), Expected(run.step(), 1, 0.5));
  EXPECT_EQ(server.status(), "FAILED");
}

// With `mlflow server` of the registry's package:
// bazel test .. --test_env=CAPSTAN_MLFLOW=/venv/bin/mlflow
TEST(TrackTest, KilledTenTimesMlflowsOwnServerHasEachStepOnce) {
  const char* const mlflow = getenv("CAPSTAN_MLFLOW");
  if (mlflow == nullptr) GTEST_SKIP() << "CAPSTAN_MLFLOW isn't set";
  const std::string folder = NewTestFolder("mlflow");
  const int port = FreePort();
  TrainerOptions options;
  options.binary = mlflow;
  options.folder = folder;
  options.timeout = 600.0;
  TrainerProcess server(
      {"server", absl::StrCat("--port=", port), "--workers=1",
       absl::StrCat("--backend-store-uri=sqlite:///", folder, "/mlflow.db")},
      options);
  httplib::Client client("127.0.0.1", port);
  ASSERT_TRUE(server.WaitUntil([&] {
    const httplib::Result result = client.Get("/health");
    return result && result->status == 200;
  })) << server.Err();
  const std::string api = "/api/2.0/mlflow/";
  std::string run_id;
  const auto history = [&](const std::string& metric) {
    MlflowStandin::Points points;
    if (run_id.empty()) {
      const httplib::Result found =
          client.Post(api + "runs/search", R"({"experiment_ids": ["1"]})",
                      "application/json");
      const Json runs = found && found->status == 200
                            ? Json::parse(found->body).value("runs", Json())
                            : Json();
      if (runs.empty()) return points;
      run_id = runs[0]["info"]["run_id"];
    }
    const httplib::Result got = client.Get(absl::StrCat(
        api, "metrics/get-history?run_id=", run_id, "&metric_key=", metric));
    if (!got || got->status != 200) return points;
    for (const Json& point :
         Json::parse(got->body).value("metrics", Json::array())) {
      points.emplace_back(point["step"], point["value"]);
    }
    return points;
  };
  WrittenRun run;
  KillTenTimes(&run,
               TrackWords(run, {"--to=mlflow",
                                absl::StrCat("--url=http://127.0.0.1:", port)}),
               [&] { return static_cast<int>(history("loss").size()); });
  EXPECT_EQ(history("loss"), Expected(run.step(), 1, 0.5));
  EXPECT_EQ(history("eval_loss"), Expected(run.step(), 10, 0.25));
}

// SIGKILL leaves a lock that nobody holds, and no summary.
TEST(TrackTest, ARunThatWasKilledHasEnded) {
  WrittenRun run;
  run.Steps(4);
  const std::string lock_path = WriteText(run.folder() + "/.lock", "");
  const int lock = open(lock_path.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(flock(lock, LOCK_EX), 0);
  TrainerProcess tracker(TrackWords(run, {"--to=csv"}));
  const std::string csv = run.folder() + "/track/metrics.csv";
  ASSERT_TRUE(tracker.WaitUntil([&] { return CountLines(csv) == 4; }));
  EXPECT_THAT(tracker.Out(), AllOf(HasSubstr("still runs: waits for its end\n"),
                                   HasSubstr("goes into " + csv + "\n")));
  close(lock);
  const TrainerResult result = tracker.Wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              HasSubstr("4 new steps in " + csv +
                        ", up to step 4; it was killed, or crashed"));
}

TEST(TrackTest, WithoutALockItSaysWhatItWaitsFor) {
  WrittenRun run;
  TrainerProcess tracker(TrackWords(run, {"--to=csv"}));
  ASSERT_TRUE(tracker.WaitUntil([&] {
    return absl::StrContains(tracker.Out(),
                             "waits until it has written nothing for two "
                             "minutes, or twenty steps' time\n");
  })) << tracker.Err();
  EXPECT_THAT(tracker.Out(), HasSubstr("has no metrics yet: waits for them\n"));
  run.Steps(1);
  run.End();
  const TrainerResult result = tracker.Wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("1 new step in "));
}

// Of whoever named the folder, or answers.
TEST(TrackTest, ATerminalGetsNoEscapeSequence) {
  const std::string folder = NewTestFolder("a\x1b[31mb");
  WriteText(folder + "/config.pbtxt", "");
  WriteText(folder + "/metrics.jsonl", "{\"step\": 1, \"loss\": 1}\n");
  WriteText(folder + "/summary.json",
            "{\"status\": \"completed\", \"steps\": 1}");
  const TrainerResult result = RunTrainer(
      {"track", folder, "--to=csv", "--alert=los\x1b[32ms>1", "--alert=end"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("[31mb"), Not(HasSubstr("\x1b"))));
  EXPECT_THAT(result.err, AllOf(HasSubstr("[32ms"), Not(HasSubstr("\x1b"))));
}

TEST(TrackTest, TheRunsOwnFilesStayAsTheyAre) {
  WrittenRun run;
  run.Steps(20);
  run.End();
  const std::map<std::string, std::string> before = Snapshot(run.folder());
  const TrainerResult result = RunTrainer(TrackWords(run, {"--to=csv"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::map<std::string, std::string> after = Snapshot(run.folder());
  for (auto it = after.begin(); it != after.end();) {
    it = absl::StrContains(it->first, "track") ? after.erase(it) : ++it;
  }
  EXPECT_EQ(after, before);
}

TEST(TrackTest, ARefusalAndAServerThatIsAwayAreOneSentence) {
  WrittenRun run;
  run.Steps(3);
  run.End();
  httplib::Server server;
  const int port = server.bind_to_any_port("127.0.0.1");
  server.set_error_handler([](const auto&, auto& response) {
    response.status = 401;
    response.set_content(R"({"message": "wrong password"})", "text/json");
  });
  std::thread thread([&] { server.listen_after_bind(); });
  const TrainerResult refused = RunTrainer(TrackWords(
      run, {"--to=mlflow",
            absl::StrCat("--url=http://me:secret@127.0.0.1:", port)}));
  server.stop();
  thread.join();
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("answered 401: wrong password"),
                                 Not(HasSubstr("secret"))));
  const TrainerResult away = RunTrainer(
      TrackWords(run, {"--to=mlflow", "--patience=0.1",
                       absl::StrCat("--url=http://127.0.0.1:", port)}));
  EXPECT_EQ(away.exit_code, 1);
  EXPECT_THAT(away.err, HasSubstr("no connection, for"));
}

TEST(TrackTest, EachAlertIsToldOnce) {
  WrittenRun run;
  std::mutex mutex;
  std::vector<std::string> told;
  httplib::Server server;
  const int port = server.bind_to_any_port("127.0.0.1");
  server.Post("/hook", [&](const auto& request, auto&) {
    std::lock_guard<std::mutex> lock(mutex);
    told.push_back(Json::parse(request.body)["rule"]);
  });
  std::thread thread([&] { server.listen_after_bind(); });
  const std::string file = run.folder() + "/told.txt";
  const std::vector<std::string> words = TrackWords(
      run, {"--alert=loss>5", "--alert=eval_loss<2", "--alert=end",
            absl::StrCat("--webhook=http://127.0.0.1:", port, "/hook"),
            absl::StrCat("--run=echo \"$CAPSTAN_ALERT_TEXT\" >> ", file)});
  run.Steps(12);
  {
    TrainerProcess tracker(words);
    // The first is kept before it is killed.
    ASSERT_TRUE(tracker.WaitForFile(run.folder() + "/track/alerts.json"));
    tracker.Signal(SIGKILL);
    tracker.Wait();
  }
  run.Steps(12);
  run.End("failed");
  for (int i = 0; i < 2; ++i) {
    const TrainerResult result = RunTrainer(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
  }
  server.stop();
  thread.join();
  EXPECT_THAT(told, ElementsAre("loss>5", "end"));
  EXPECT_THAT(ReadText(file), AllOf(HasSubstr("loss is 5.5 at step 5"),
                                    HasSubstr("the run has ended: failed")));
}

// A crash at its start.
TEST(TrackTest, TheEndOfARunWithoutMetricsIsToldOnce) {
  WrittenRun run;
  run.End("failed");
  const std::vector<std::string> words = TrackWords(run, {"--alert=end"});
  EXPECT_THAT(RunTrainer(words).out, HasSubstr("the run has ended: failed"));
  EXPECT_THAT(RunTrainer(words).out, Not(HasSubstr("the run has ended")));
}

// More rows than are kept for a target that is away.
TEST(TrackTest, AlertsAreToldWhileTheTargetIsAway) {
  WrittenRun run;
  run.Steps(5000);
  run.End();
  const TrainerResult result = RunTrainer(
      TrackWords(run, {"--to=mlflow", "--patience=0.1", "--alert=loss>4900",
                       absl::StrCat("--url=http://127.0.0.1:", FreePort())}));
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, HasSubstr("loss is 4900.5 at step 4900"));
}

TEST(TrackTest, PrometheusReadsAFileAndAPort) {
  WrittenRun run;
  run.Steps(10);
  const std::string file = run.folder() + "/capstan.prom";
  const int port = FreePort();
  TrainerProcess tracker(TrackWords(
      run,
      {"--to=prometheus", absl::StrCat("--port=", port), "--file=" + file}));
  ASSERT_TRUE(tracker.WaitForFile(file)) << tracker.Err();
  httplib::Client client("127.0.0.1", port);
  std::string text;
  const auto fetch = [&](const std::string& line) {
    return tracker.WaitUntil([&] {
      const httplib::Result result = client.Get("/metrics");
      if (result) text = result->body;
      return absl::StrContains(text, line);
    });
  };
  const std::string labels = "{run=\"hand\"";
  ASSERT_TRUE(fetch("capstan_step" + labels)) << text;
  EXPECT_THAT(text, HasSubstr("# TYPE capstan_loss gauge\n"));
  run.Steps(5);
  run.End();
  const TrainerResult result = [&] {
    while (tracker.Running()) client.Get("/metrics");
    return tracker.Wait();
  }();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(ReadText(file), HasSubstr("} 15\n"));
}

TEST(TrackTest, WrongFlagsAreNamed) {
  WrittenRun run;
  const auto error = [&](const std::vector<std::string>& words) {
    const TrainerResult result = RunTrainer(TrackWords(run, words));
    EXPECT_NE(result.exit_code, 0);
    return result.err;
  };
  EXPECT_THAT(error({"--to=abacus"}), HasSubstr("--to=abacus: must be mlflow"));
  EXPECT_THAT(error({}), HasSubstr("--to: say where"));
  EXPECT_THAT(error({"--to=mlflow"}), HasSubstr("MLFLOW_TRACKING_URI"));
  EXPECT_THAT(error({"--to=trainjob"}),
              HasSubstr("KUBEFLOW_TRAINER_SERVER_URL isn't set"));
  EXPECT_THAT(error({"--to=csv", "--alert=loss=5"}),
              HasSubstr("--alert=loss=5: must be"));
}

}  // namespace
}  // namespace capstan
