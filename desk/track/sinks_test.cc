// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/files.h"
#include "base/json.h"
#include "base/scratch_folder.h"
#include "desk/track/run_for_test.h"
#include "desk/track/sink.h"

namespace capstan::track {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

std::string Read(const std::string& path) {
  return ReadWholeFile(path).value_or("");
}

// Keeps what is posted to it, and answers with `answer` and `status`.
class Recorder {
 public:
  Recorder() {
    server_.Post(".*", [this](const auto& request, auto& response) {
      std::lock_guard<std::mutex> lock(mutex_);
      paths.push_back(request.path);
      headers.push_back(request.headers);
      bodies.push_back(ParseJson<Json>(request.body));
      response.status = status;
      response.set_content(answer, "application/json");
    });
    port_ = server_.bind_to_any_port("127.0.0.1");
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) std::this_thread::yield();
  }
  ~Recorder() {
    server_.stop();
    thread_.join();
  }
  std::string url() const { return absl::StrCat("http://127.0.0.1:", port_); }

  std::string answer = "{}";
  int status = 200;
  std::vector<std::string> paths;
  std::vector<httplib::Headers> headers;
  std::vector<Json> bodies;

 private:
  int port_ = 0;
  std::mutex mutex_;
  httplib::Server server_;
  std::thread thread_;
};

class SinksTest : public ::testing::Test {
 protected:
  SinksTest() {
    EXPECT_TRUE(MakeFolder(folder_.path() + "/track").ok());
    setenv("WANDB_DIR", folder_.path().c_str(), 1);
  }

  const ScratchFolder folder_;
  TrackedRun run_ = RunIn(folder_.path());
};

TEST_F(SinksTest, ACsvRowThatWasCutIsWrittenAgain) {
  const std::string path = folder_.path() + "/track/metrics.csv";
  {
    const std::unique_ptr<Sink> csv = MakeCsv({});
    ASSERT_TRUE(csv->Open(run_).ok());
    ASSERT_TRUE(csv->Send(Rows(1, 3)).ok());
  }
  const std::string whole = Read(path);
  run_.acknowledged = 1;
  for (size_t bytes = whole.rfind('\n', whole.size() - 2) + 1;
       bytes < whole.size(); ++bytes) {
    std::ofstream(path) << whole.substr(0, bytes);
    const std::unique_ptr<Sink> csv = MakeCsv({});
    const auto last = csv->Open(run_);
    ASSERT_TRUE(last.ok()) << last.status();
    EXPECT_EQ(*last, 2);
    ASSERT_TRUE(csv->Send(Rows(3, 3)).ok());
    EXPECT_EQ(Read(path), whole);
  }
}

TEST_F(SinksTest, ACsvFileThatTrackDidNotWriteForThisRunStays) {
  SinkOptions options;
  options.file = folder_.path() + "/mine.csv";
  std::ofstream(options.file) << "step,time,events\n1,2,\n";
  const auto opened = MakeCsv(options)->Open(run_);
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Read(options.file), "step,time,events\n1,2,\n");
  std::ofstream(options.file) << "step,time,events\n";
  EXPECT_TRUE(MakeCsv(options)->Open(run_).ok());
}

TEST_F(SinksTest, ACsvFileGetsColumnsAsMetricsComeUp) {
  const std::unique_ptr<Sink> csv = MakeCsv({});
  ASSERT_TRUE(csv->Open(run_).ok());
  ASSERT_TRUE(csv->Send(Rows(1, 1)).ok());
  std::vector<Row> rows = Rows(2, 2);
  rows[0].metrics.emplace_back("eval_a,b", 0.25);
  rows[0].events = {{0, 2, "save", "in 2 s"}, {0, 2, "warning", ""}};
  ASSERT_TRUE(csv->Send(rows).ok());
  EXPECT_EQ(Read(folder_.path() + "/track/metrics.csv"),
            "step,time,events,loss,\"eval_a,b\"\n"
            "1,1700000001,,1.5,\n"
            "2,1700000002,save: in 2 s; warning,2.5,0.25\n");
  // Another tracker goes on with them.
  run_.acknowledged = 2;
  const std::unique_ptr<Sink> next = MakeCsv({});
  ASSERT_TRUE(next->Open(run_).ok());
  rows[0].step = 3;
  rows[0].events.clear();
  ASSERT_TRUE(next->Send(rows).ok());
  EXPECT_THAT(Read(folder_.path() + "/track/metrics.csv"),
              EndsWith("\n3,1700000002,,2.5,0.25\n"));
}

// Whatever a kill has left of the file, after the next tracker it is as if
// there had been one.
TEST_F(SinksTest, AWandbFileCutAnywhereIsCompletedToTheSame) {
  // Records that cross a block's end.
  run_.settings.emplace_back("long", std::string(40000, 'x'));
  RunState state;
  state.ended = true;
  state.status = "completed";
  const auto write = [&] {
    const std::unique_ptr<Sink> wandb = MakeWandb();
    const auto last = wandb->Open(run_);
    ASSERT_TRUE(last.ok()) << last.status();
    const int64_t from = *last == kNoStep ? 1 : *last + 1;
    if (from <= 3) {
      ASSERT_TRUE(wandb->Send(Rows(from, 3)).ok());
    }
    ASSERT_TRUE(wandb->Finish(state, {}).ok());
  };
  write();
  std::string path;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(
           folder_.path() + "/wandb")) {
    if (entry.path().extension() == ".wandb") path = entry.path();
  }
  EXPECT_THAT(path, HasSubstr("-0123456789abcdef/run-0123456789abcdef.wandb"));
  const std::string whole = Read(path);
  ASSERT_GT(whole.size(), 40000);
  for (size_t bytes = 0; bytes <= whole.size();
       bytes += bytes > 20 && bytes < 40000 ? 997 : 1) {
    std::ofstream(path) << whole.substr(0, bytes);
    write();
    ASSERT_EQ(Read(path), whole) << bytes;
  }
}

TEST_F(SinksTest, TrackioGetsAnIdForEachStep) {
  Recorder server;
  server.answer = R"({"data": null})";
  auto trackio = MakeTrackio({server.url() + "/?write_token=t", ""});
  ASSERT_TRUE(trackio.ok()) << trackio.status();
  ASSERT_TRUE((*trackio)->Open(run_).ok());
  std::vector<Row> rows = Rows(1, 2);
  rows[1].events = {{1.7e9, 2, "spike", "loss 9"}};
  ASSERT_TRUE((*trackio)->Send(rows).ok());
  EXPECT_THAT(server.paths, ElementsAre("/api/bulk_log", "/api/bulk_alert"));
  const Json& log = server.bodies[0]["kwargs"]["logs"][1];
  EXPECT_EQ(log["log_id"], "0123456789abcdef-2");
  EXPECT_EQ(log["metrics"], Json({{"loss", 2.5}}));
  EXPECT_EQ(log["config"]["train.max_steps"], 100);
  // An evaluation that came later isn't the row that the server has.
  rows.resize(1);
  rows[0].late = true;
  rows[0].metrics = {{"eval_loss", 1.0}};
  ASSERT_TRUE((*trackio)->Send(rows).ok());
  EXPECT_EQ(server.bodies.back()["kwargs"]["logs"][0]["log_id"],
            "0123456789abcdef-1-eval_loss");
  // Another server's answers.
  for (const char* other : {"{}", "[]", "<html>", ""}) {
    server.answer = other;
    EXPECT_THAT(std::string((*trackio)->Send(Rows(3, 3)).message()),
                HasSubstr("doesn't answer as a Trackio server does"))
        << other;
  }
  server.answer = R"({"error": "no write_token"})";
  EXPECT_THAT(std::string((*trackio)->Send(Rows(3, 3)).message()),
              HasSubstr("no write_token"));
}

Measures SomeMeasures() {
  Measures measures;
  measures.run = "a run";
  measures.id = "0123456789abcdef";
  measures.start_time = 1.7e9;
  measures.time = 1.7e9 + 60.25;
  measures.progress = 99.9;
  measures.seconds_left = 12.4;
  measures.list = {{"loss", "The loss.", "1", false, {{-1, 2.5}}},
                   {"tokens_total", "Tokens.", "1", true, {{-1, 1000.0}}},
                   {"resident_memory_bytes", "RAM.", "By", false, {{3, 7.0}}}};
  return measures;
}

TEST_F(SinksTest, OtlpIsGaugesAndSums) {
  Recorder server;
  auto otlp = MakeOtlp({server.url(), ""});
  ASSERT_TRUE(otlp.ok()) << otlp.status();
  ASSERT_TRUE((*otlp)->Update(SomeMeasures()).ok());
  EXPECT_THAT(server.paths, ElementsAre("/v1/metrics"));
  const Json& metrics =
      server.bodies[0]["resourceMetrics"][0]["scopeMetrics"][0]["metrics"];
  EXPECT_EQ(metrics[0]["name"], "capstan.loss");
  EXPECT_EQ(metrics[0]["gauge"]["dataPoints"],
            Json::array({{{"timeUnixNano", "1700000060250000000"},
                          {"asDouble", 2.5}}}));
  EXPECT_EQ(metrics[1]["sum"]["isMonotonic"], true);
  EXPECT_EQ(metrics[2]["gauge"]["dataPoints"][0]["attributes"][0]["value"],
            Json({{"intValue", "3"}}));
  server.answer = "";  // Prometheus' receiver
  EXPECT_TRUE((*otlp)->Update(SomeMeasures()).ok());
  server.answer = "<html>a login page</html>";
  EXPECT_THAT(std::string((*otlp)->Update(SomeMeasures()).message()),
              HasSubstr("doesn't answer as a collector does"));
}

TEST_F(SinksTest, OtlpGoesOnAfterAWarningAndDecodesItsVariables) {
  Recorder server;
  server.answer = R"({"partialSuccess": {"errorMessage": "old field"}})";
  setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Basic%20abc", 1);
  auto otlp = MakeOtlp({server.url(), ""});
  unsetenv("OTEL_EXPORTER_OTLP_HEADERS");
  ASSERT_TRUE(otlp.ok()) << otlp.status();
  EXPECT_TRUE((*otlp)->Update(SomeMeasures()).ok());
  EXPECT_EQ(server.headers[0].find("authorization")->second, "Basic abc");
}

TEST_F(SinksTest, TheTrainJobsStatusGoesWithTheTokenOfTheMoment) {
  Recorder server;
  const std::string token = folder_.path() + "/token";
  setenv("KUBEFLOW_TRAINER_SERVER_URL", (server.url() + "/status").c_str(), 1);
  setenv("KUBEFLOW_TRAINER_SERVER_TOKEN", token.c_str(), 1);
  auto job = MakeTrainJob({});
  ASSERT_TRUE(job.ok()) << job.status();
  Measures measures = SomeMeasures();
  ASSERT_TRUE(WriteWholeFile(token, "first\n").ok());
  ASSERT_TRUE((*job)->Update(measures).ok());
  ASSERT_TRUE((*job)->Update(measures).ok());  // too soon: isn't sent
  ASSERT_TRUE(WriteWholeFile(token, "second\n").ok());
  measures.list.push_back({"running", "", "1", false, {{-1, 0.0}}});
  ASSERT_TRUE((*job)->Update(measures).ok());
  EXPECT_THAT(server.paths, ElementsAre("/status", "/status"));
  const auto authorization = [&](size_t i) {
    return server.headers[i].find("Authorization")->second;
  };
  EXPECT_EQ(authorization(0), "Bearer first");
  EXPECT_EQ(authorization(1), "Bearer second");
  EXPECT_EQ(server.bodies[0],
            Json({{"trainerStatus",
                   {{"lastUpdatedTime", "2023-11-14T22:14:20Z"},
                    {"progressPercentage", 99},
                    {"estimatedRemainingSeconds", 12},
                    {"metrics", {{{"name", "loss"}, {"value", "2.5"}}}}}}}));
}

TEST_F(SinksTest, ServersErrorsAreOutagesOrRefusals) {
  Recorder server;
  auto otlp = MakeOtlp({server.url(), ""});
  ASSERT_TRUE(otlp.ok());
  for (const int status : {408, 429, 500, 503}) {
    server.status = status;
    EXPECT_TRUE(absl::IsUnavailable((*otlp)->Update(SomeMeasures())));
  }
  server.status = 400;
  server.answer = R"({"message": "bad unit"})";
  const absl::Status refused = (*otlp)->Update(SomeMeasures());
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("/v1/metrics answered 400: bad unit"));
}

}  // namespace
}  // namespace capstan::track
