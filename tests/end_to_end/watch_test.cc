// SPDX-License-Identifier: Apache-2.0
//
// `trainer watch` beside runs, and the page that each run leaves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <signal.h>
#include <sys/resource.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"
#include "tests/testing/trainer_process.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

RunText SmallRun(const std::string& folder) {
  return RunText().Ddp(2).Batch(2, 8).Output(folder);
}

// What the page that a run has left was given.
Json ReportOf(const std::string& folder) {
  const std::string html = ReadText(folder + "/report.html");
  const std::string mark = "type=\"application/json\" id=\"report\">";
  const size_t begin = html.find(mark) + mark.size();
  return Json::parse(html.substr(begin, html.find("</script>", begin) - begin));
}

// `trainer watch` of runs, and a client of it.
class Watching {
 public:
  explicit Watching(const std::vector<std::string>& runs)
      : process_(Words(runs)) {
    EXPECT_TRUE(process_.WaitUntil([this] {
      return absl::StrContains(process_.Out(), "\nFrom");
    })) << process_.Err();
    // "Open http://127.0.0.1:40123/?key=0f3c.."
    const std::string text = process_.Out();
    const size_t port = text.find("127.0.0.1:") + 10;
    const size_t key = text.find("?key=") + 5;
    EXPECT_TRUE(absl::SimpleAtoi(text.substr(port, text.find('/', port) - port),
                                 &port_));
    key_ = text.substr(key, text.find('\n') - key);
  }

  Json Runs() {
    const auto answer = Client().Get("/api/runs", Headers());
    EXPECT_TRUE(answer && answer->status == 200);
    return answer ? Json::parse(answer->body) : Json();
  }
  Json Rows(int step) {
    const auto answer =
        Client().Get(absl::StrCat("/api/rows?run=0&step=", step), Headers());
    EXPECT_TRUE(answer && answer->status == 200)
        << (answer ? answer->body : "no answer");
    return answer ? Json::parse(answer->body) : Json();
  }
  pid_t pid() const { return process_.pid(); }
  // The request's id.
  std::string Tell(const Json& words) {
    const auto answer = Client().Post("/api/control", Headers(), words.dump(),
                                      "application/json");
    EXPECT_TRUE(answer && answer->status == 200) << answer->body;
    return answer ? Json::parse(answer->body)["id"].get<std::string>() : "";
  }
  bool WaitUntil(const std::function<bool()>& there) {
    return process_.WaitUntil(there);
  }
  TrainerResult End() {
    process_.Signal(SIGINT);
    return process_.Wait();
  }

 private:
  static std::vector<std::string> Words(const std::vector<std::string>& runs) {
    std::vector<std::string> words = {"watch"};
    words.insert(words.end(), runs.begin(), runs.end());
    return words;
  }
  // The server lets all others run first, and the rows are another process's.
  httplib::Client Client() const {
    httplib::Client client("127.0.0.1", port_);
    client.set_read_timeout(/*seconds=*/300);
    return client;
  }
  httplib::Headers Headers() const {
    return {{"Authorization", absl::StrCat("Bearer ", key_)}};
  }

  TrainerProcess process_;
  int port_ = 0;
  std::string key_;
};

TEST(WatchTest, AFinishedRun) {
  const std::string folder = NewTestFolder("run") + "/out";
  MustTrain(SmallRun(folder).Train("max_steps: 6"));
  EXPECT_THAT(ReadText(folder + "/report.html"),
              AllOf(HasSubstr("connect-src 'none'"), HasSubstr("\"loss\""),
                    HasSubstr("</html>"), Not(HasSubstr("{{"))));
  // The run took less than a second.
  const Json report = ReportOf(folder)["runs"][0];
  EXPECT_EQ(report["status"]["text"], "completed");
  EXPECT_EQ(report["events"].back()["kind"], "end");
  EXPECT_EQ(report["ranks"]["rows"].size(), 2);

  const TrainerResult picture = RunTrainer({"watch", "--terminal", folder});
  EXPECT_EQ(picture.exit_code, 0) << picture.err;
  EXPECT_THAT(
      picture.out,
      AllOf(HasSubstr("completed  step 6 of 6  100 %"), HasSubstr("\nloss\n"),
            HasSubstr("completed after step 6"), HasSubstr("  rest 0."),
            Not(HasSubstr("\x1b")), Not(HasSubstr(" \n"))));

  const std::string page = NewTestFolder("page") + "/two.html";
  EXPECT_EQ(RunTrainer({"watch", folder, folder, "--html=" + page}).exit_code,
            0);
  EXPECT_THAT(ReadText(page), HasSubstr("<title>2 runs</title>"));

  Watching watching({folder});
  ASSERT_TRUE(watching.WaitUntil(
      [&] { return watching.Runs()[0]["status"]["text"] == "completed"; }));
  const Json run = watching.Runs()[0];
  EXPECT_EQ(run["curves"]["series"]["loss"]["at"].size(), 6);
  EXPECT_EQ(run["config"]["fields"]["strategy"], "capstan.ddp");
  EXPECT_EQ(run["ranks"]["rows"].size(), 2);
  // A run on this machine comes first.
  EXPECT_EQ(getpriority(PRIO_PROCESS, watching.pid()), 19);

  const Json rows = watching.Rows(1);
  ASSERT_EQ(rows["rows"].size(), 8);
  EXPECT_NE(rows["rows"][0]["texts"][0]["text"], "");
  EXPECT_NEAR(rows["loss"].get<double>(),
              run["curves"]["series"]["loss"]["mean"][0].get<double>(), 1e-4);
  EXPECT_EQ(watching.End().exit_code, 0);
}

TEST(WatchTest, ARunIsToldToEnd) {
  const std::string folder = NewTestFolder("run") + "/out";
  TrainerProcess training(
      {"--config=" +
       SmallRun(folder).Train("max_steps: 1000000 control: true").File()});
  ASSERT_TRUE(training.WaitForFile(folder + "/metrics.jsonl"))
      << training.Err();
  Watching watching({folder});
  const auto status = [&] { return watching.Runs()[0]["status"]; };
  ASSERT_TRUE(watching.WaitUntil(
      [&] { return status()["control"] == true && status()["step"] > 2; }));
  EXPECT_EQ(status()["state"], "running");
  // The server's answer to a request, "" as long as there is none.
  const auto answer = [&](const std::string& id) {
    const Json told = watching.Runs()[0];
    for (const Json& event : told["events"]) {
      if (event["kind"] == "control" && event["id"] == id) {
        return event["text"].get<std::string>();
      }
    }
    return std::string();
  };
  // A run that is past the end by the time that it reads of it refuses it.
  int64_t end = 0;
  std::string text = "refused";
  for (int64_t ahead = 200; absl::StartsWith(text, "refused"); ahead *= 10) {
    end = status()["step"].get<int64_t>() + ahead;
    const std::string id =
        watching.Tell({{"run", 0}, {"do", "max_steps"}, {"value", end}});
    ASSERT_TRUE(watching.WaitUntil([&] { return !answer(id).empty(); }));
    text = answer(id);
  }
  const TrainerResult result = training.Wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  ASSERT_TRUE(
      watching.WaitUntil([&] { return status()["text"] == "completed"; }));
  const Json run = watching.Runs()[0];
  EXPECT_EQ(run["status"]["step"], end);
  EXPECT_EQ(run["status"]["max_steps"], end);
  watching.End();
}

TEST(WatchTest, WhatItRefuses) {
  ExpectOneError(RunTrainer({"watch"}), {"name the runs to watch"});
  // It would wait for a run in a folder that is there.
  const std::string folder = NewTestFolder("empty") + "/nowhere";
  ExpectOneError(RunTrainer({"watch", folder}),
                 {folder, "isn't there: start the run first"});
}

}  // namespace
}  // namespace capstan
