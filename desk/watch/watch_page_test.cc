// SPDX-License-Identifier: Apache-2.0
//
// The server of `watch`, by HTTP, and its page.
#include "desk/watch/watch_page.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "desk/watch/report.h"

namespace capstan {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kKey[] = "0123456789abcdef";
constexpr std::chrono::seconds kPatience{20};

std::string Line(int step) {
  return absl::StrCat("{\"step\": ", step, ", \"loss\": ", step, ".5}\n");
}

// Runs "one", which listens, and "two", and the server of both.
class WatchPageTest : public ::testing::Test {
 protected:
  WatchPageTest() {
    folder_ = ::testing::TempDir() + "watch_XXXXXX";
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    Write("one/config.pbtxt", "train {\n  control: true\n  max_steps: 10\n}\n");
    Write("one/metrics.jsonl", Line(1) + Line(2));
    Write("one/generations.jsonl",
          "{\"step\": 1, \"prompt\": \"</script><b>\", \"text\": "
          "\"<img src=x>\"}\n");
    Write("two/config.pbtxt", "train {\n  max_steps: 10\n}\n");
    Write("two/secret.txt", "not for pages");
    runs_ = std::make_unique<LiveRuns>(
        std::vector<std::pair<std::string, std::string>>{
            {folder_ + "/one", "<i>one</i>"}, {folder_ + "/two", "two"}});
    ServerOptions options;
    options.key = kKey;
    auto server = HttpServer::Listen(options);
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    // Instead of the trainer.
    const std::string who = folder_ + "/who";
    Write("who",
          "#!/bin/sh\necho \"{\\\"asked\\\": \\\"$*\\\", "
          "\\\"rows\\\": []}\"\n");
    std::filesystem::permissions(who, std::filesystem::perms::owner_all);
    rows_ = std::make_unique<StepRows>(who);
    AddWatchRoutes(runs_.get(), rows_.get(), server_.get());
    runs_->ReadAll();
    runs_->Follow();
    thread_ = std::thread([this] { EXPECT_TRUE(server_->Run().ok()); });
    while (!server_->is_running()) std::this_thread::yield();
  }
  ~WatchPageTest() override {
    server_->Stop();
    thread_.join();
  }

  void Write(const std::string& name, const std::string& text) {
    const std::string path = folder_ + "/" + name;
    std::filesystem::create_directories(
        std::filesystem::path(path).parent_path());
    std::ofstream(path, std::ios::app) << text;
  }
  std::string Read(const std::string& name) {
    std::stringstream text;
    text << std::ifstream(folder_ + "/" + name).rdbuf();
    return text.str();
  }
  httplib::Client client() {
    return httplib::Client("127.0.0.1", server_->port());
  }
  // The answer's body; its status in *status.
  std::string Get(const std::string& path, int* status = nullptr) {
    const auto result = client().Get(path.c_str(), Authorized());
    EXPECT_TRUE(result) << path;
    if (status != nullptr) *status = result ? result->status : -1;
    return result ? result->body : "";
  }
  // The status, and the error's text or the id.
  std::pair<int, std::string> Post(const std::string& body) {
    const auto result =
        client().Post("/api/control", Authorized(), body, "application/json");
    EXPECT_TRUE(result);
    if (!result) return {-1, ""};
    const json answer = json::parse(result->body);
    return {result->status,
            answer.contains("id")
                ? answer["id"].get<std::string>()
                : answer["error"]["message"].get<std::string>()};
  }
  static httplib::Headers Authorized() {
    return {{"Authorization", absl::StrCat("Bearer ", kKey)}};
  }

  std::string folder_;
  std::unique_ptr<LiveRuns> runs_;
  std::unique_ptr<StepRows> rows_;
  std::unique_ptr<HttpServer> server_;
  std::thread thread_;
};

TEST_F(WatchPageTest, NothingWithoutTheKey) {
  for (const char* path :
       {"/", "/api/runs", "/api/events", "/api/curves",
        "/api/rows?run=0&step=1", "/?key=0123456789abcdee", "/api/runs?key="}) {
    const auto result = client().Get(path);
    ASSERT_TRUE(result) << path;
    EXPECT_EQ(result->status, 401) << path;
    EXPECT_THAT(result->body, Not(HasSubstr("one")));
  }
  const auto told = client().Post("/api/control", "{\"run\":0,\"do\":\"save\"}",
                                  "application/json");
  ASSERT_TRUE(told);
  EXPECT_EQ(told->status, 401);
  EXPECT_EQ(Read("one/control.jsonl"), "");
}

TEST_F(WatchPageTest, NothingForOtherSites) {
  httplib::Headers headers = Authorized();
  headers.emplace("Host", "evil.example");
  auto result = client().Get("/api/runs", headers);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->status, 403);
  headers = Authorized();
  headers.emplace("Origin", "http://evil.example");
  result = client().Post("/api/control", headers, "{\"run\":0,\"do\":\"stop\"}",
                         "text/plain");
  ASSERT_TRUE(result);
  EXPECT_EQ(result->status, 403);
  EXPECT_EQ(Read("one/control.jsonl"), "");
}

TEST_F(WatchPageTest, NoOtherFiles) {
  for (const char* path :
       {"/secret.txt", "/two/secret.txt", "/../two/secret.txt",
        "/api/../../secret.txt", "/api/runs/..%2f..%2fsecret.txt",
        "/api/curves?run=../two&to=5", "/api/curves?run=2&to=5",
        "/api/curves?run=-1&to=5"}) {
    int status = 0;
    EXPECT_THAT(Get(path, &status), Not(HasSubstr("not for pages"))) << path;
    EXPECT_EQ(status, 404) << path;
  }
}

TEST_F(WatchPageTest, Runs) {
  const json all = json::parse(Get("/api/runs"));
  ASSERT_EQ(all.size(), 2);
  EXPECT_EQ(all[0]["name"], "<i>one</i>");
  EXPECT_EQ(all[0]["status"]["step"], 2);
  EXPECT_EQ(all[0]["status"]["control"], true);
  EXPECT_EQ(all[0]["curves"]["series"]["loss"]["mean"], json({1.5, 2.5}));
  EXPECT_EQ(all[0]["config"]["fields"]["train.max_steps"], "10");
  EXPECT_EQ(all[1]["status"]["state"], "waiting");
}

TEST_F(WatchPageTest, EventsFollowARunThatGoesOn) {
  std::string received;
  bool wrote = false;
  const auto begun = std::chrono::steady_clock::now();
  client().Get("/api/events", Authorized(), [&](const char* data, size_t size) {
    received.append(data, size);
    if (!wrote && absl::StrContains(received, "\"index\":1")) {
      wrote = true;
      Write("one/metrics.jsonl", Line(3));
    }
    return !absl::StrContains(received, "3.5") &&
           std::chrono::steady_clock::now() - begun < kPatience;
  });
  std::vector<json> updates;
  for (absl::string_view event : absl::StrSplit(received, "\n\n")) {
    if (absl::ConsumePrefix(&event, "data: ")) {
      updates.push_back(json::parse(event));
    }
  }
  ASSERT_GE(updates.size(), 3);
  EXPECT_EQ(updates[0]["index"], 0);
  EXPECT_EQ(updates[0]["curves"]["from"], 0);
  EXPECT_EQ(updates[1]["index"], 1);
  EXPECT_EQ(updates[2]["status"]["step"], 3);
  EXPECT_EQ(updates[2]["curves"]["series"]["loss"]["at"], json({2, 3}));
  EXPECT_FALSE(updates[2].contains("config"));
}

TEST_F(WatchPageTest, APartOfTheCurves) {
  const json part = json::parse(Get("/api/curves?run=0&from=2&to=2"));
  EXPECT_EQ(part["series"]["loss"]["at"], json({2}));
  int status = 0;
  EXPECT_THAT(Get("/api/curves?run=0&from=5&to=2", &status),
              HasSubstr("from and to"));
  EXPECT_EQ(status, 400);
  EXPECT_THAT(Get("/api/curves?run=9", &status), HasSubstr("no such run"));
  EXPECT_EQ(status, 404);
}

TEST_F(WatchPageTest, TheRowsOfAStep) {
  const json rows = json::parse(Get("/api/rows?run=1&step=3"));
  EXPECT_EQ(rows["asked"], "who " + folder_ + "/two --step=3 --top=100 --json");
  int status = 0;
  for (const char* path : {"/api/rows?run=2&step=3", "/api/rows?step=3",
                           "/api/rows?run=-1&step=3"}) {
    Get(path, &status);
    EXPECT_EQ(status, 404) << path;
  }
  for (const char* path : {"/api/rows?run=0", "/api/rows?run=0&step=0",
                           "/api/rows?run=0&step=--help"}) {
    Get(path, &status);
    EXPECT_EQ(status, 400) << path;
  }
}

TEST_F(WatchPageTest, ARunThatNobodyRunsIsNotTold) {
  Write("one/.lock", "");
  const auto [status, why] = Post("{\"run\": 0, \"do\": \"save\"}");
  EXPECT_EQ(status, 409);
  EXPECT_THAT(why, HasSubstr("no process holds its folder"));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/one/control.jsonl"));
}

TEST_F(WatchPageTest, TellsARun) {
  Write("one/.lock", "");
  const int lock = open((folder_ + "/one/.lock").c_str(), O_RDWR);
  ASSERT_EQ(flock(lock, LOCK_EX), 0);
  const auto [saved, save_id] = Post("{\"run\": 0, \"do\": \"save\"}");
  EXPECT_EQ(saved, 200) << save_id;
  const auto [set, set_id] =
      Post("{\"run\": 0, \"do\": \"max_steps\", \"value\": 50}");
  EXPECT_EQ(set, 200) << set_id;
  const std::string text = Read("one/control.jsonl");
  const std::vector<std::string> lines =
      absl::StrSplit(text, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 2);
  EXPECT_EQ(json::parse(lines[0]), json({{"id", save_id}, {"do", "save"}}));
  EXPECT_EQ(json::parse(lines[1]),
            json({{"id", set_id}, {"do", "max_steps"}, {"value", 50}}));
  close(lock);
}

TEST_F(WatchPageTest, WhatARunCannotBeTold) {
  const std::pair<std::string, int> wrong[] = {
      {"", 400},
      {"[]", 400},
      {"{\"run\": -1, \"do\": \"save\"}", 400},
      {"{\"run\": 7, \"do\": \"save\"}", 404},
      {"{\"run\": 0, \"do\": \"rm\"}", 400},
      {"{\"run\": 0, \"do\": \"max_steps\"}", 400},
      {"{\"run\": 0, \"do\": \"max_steps\", \"value\": -5}", 400},
      {"{\"run\": 0, \"do\": \"max_steps\", \"value\": \"9\"}", 400},
  };
  for (const auto& [body, status] : wrong) {
    EXPECT_EQ(Post(body).first, status) << body;
  }
  EXPECT_EQ(Read("one/control.jsonl"), "");
  const auto [status, why] = Post("{\"run\": 1, \"do\": \"save\"}");
  EXPECT_EQ(status, 409);
  EXPECT_THAT(why, HasSubstr("two doesn't listen: start it with --set "
                             "train.control=true"));
  EXPECT_EQ(Read("two/control.jsonl"), "");
}

TEST_F(WatchPageTest, ARunThatHasEndedIsNotTold) {
  Write("one/summary.json", "{\"status\": \"completed\", \"steps\": 2}");
  const auto begun = std::chrono::steady_clock::now();
  while (json::parse(Get("/api/runs"))[0]["status"]["state"] != "ended") {
    ASSERT_LT(std::chrono::steady_clock::now() - begun, kPatience);
  }
  const auto [status, why] = Post("{\"run\": 0, \"do\": \"save\"}");
  EXPECT_EQ(status, 409);
  EXPECT_THAT(why, HasSubstr("has ended"));
  EXPECT_EQ(Read("one/control.jsonl"), "");
}

// What a browser is told: these scripts alone, and no request elsewhere.
TEST_F(WatchPageTest, ThePagesPolicy) {
  const auto result = client().Get("/", Authorized());
  ASSERT_TRUE(result);
  EXPECT_EQ(result->get_header_value("Content-Security-Policy"),
            "frame-ancestors 'none'");
  EXPECT_EQ(result->get_header_value("Referrer-Policy"), "no-referrer");
  const std::string& html = result->body;
  EXPECT_THAT(html, AllOf(HasSubstr("default-src 'none'; base-uri 'none'; "
                                    "form-action 'none'; img-src data:; "
                                    "connect-src 'self'; "
                                    "style-src 'sha256-"),
                          Not(HasSubstr("unsafe-inline")),
                          Not(HasSubstr("unsafe-eval"))));
  for (const char* loader : {"<link rel=\"s", "<img", "<iframe", " src=",
                             "@import", "url(", "import(", "innerHTML"}) {
    EXPECT_THAT(html, Not(HasSubstr(loader)));
  }
}

TEST_F(WatchPageTest, TheReportHoldsAllAndAsksNobody) {
  const std::string html = ReportPage(*runs_);
  EXPECT_THAT(
      html, AllOf(HasSubstr("connect-src 'none'"),
                  Not(HasSubstr("<img src=x>")), Not(HasSubstr("<i>one</i>"))));
  const std::string begin = "<script type=\"application/json\" id=\"report\">";
  const size_t at = html.find(begin) + begin.size();
  const json report = json::parse(html.substr(at, html.find("</script>") - at));
  EXPECT_EQ(report["live"], false);
  EXPECT_EQ(report["runs"][0]["name"], "<i>one</i>");
  EXPECT_EQ(report["runs"][0]["samples"][0]["prompt"], "</script><b>");
}

}  // namespace
}  // namespace capstan
