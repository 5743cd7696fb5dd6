// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>

#include <atomic>
#include <future>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "plugins/grpo/rewards/kinds.h"

namespace capstan::grpo {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsNan;

class HttpRewardTest : public testing::Test {
 protected:
  HttpRewardTest() {
    server_.Post("/score", [this](const httplib::Request& request,
                                  httplib::Response& response) {
      ++requests_;
      if (requests_ <= failures_) {
        response.status = status_;
        response.set_content("busy", "text/plain");
        return;
      }
      body_ = request.body;
      response.set_content(reply_, "application/json");
    });
    server_.Post("/hang", [this](const httplib::Request&, httplib::Response&) {
      released_.wait();
    });
    port_ = server_.bind_to_any_port("127.0.0.1");
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    // One that doesn't run yet doesn't stop, either.
    const double deadline = MonotonicSeconds() + 60.0;
    while (!server_.is_running() && MonotonicSeconds() < deadline) {
      std::this_thread::yield();
    }
  }
  ~HttpRewardTest() override {
    release_.set_value();
    server_.stop();
    thread_.join();
  }

  Http Config(const std::string& path = "/score") {
    Http config;
    config.set_url(absl::StrCat("http://127.0.0.1:", port_, path));
    return config;
  }

  static absl::StatusOr<std::vector<double>> Score(const Http& config) {
    const MadeReward reward = NewHttp(config);
    EXPECT_TRUE(reward.ok()) << reward.status();
    std::vector<Answer> answers(3);
    answers[0].text = "one";
    answers[0].prompt = "say";
    answers[0].row = "{\"a\": 1}";
    return (*reward)->Score(answers);
  }

  std::string Error(const Http& config) {
    const auto scores = Score(config);
    EXPECT_FALSE(scores.ok());
    return std::string(scores.status().message());
  }

  httplib::Server server_;
  int port_ = 0;
  std::thread thread_;
  std::promise<void> release_;
  std::shared_future<void> released_ = release_.get_future().share();
  std::atomic<int> requests_{0};
  std::atomic<int> failures_{0};
  std::atomic<int> status_{503};
  std::string body_;
  std::string reply_ = "{\"rewards\": [1, null, -2.5]}";
};

TEST_F(HttpRewardTest, ScoresInOrder) {
  const auto scores = Score(Config());
  ASSERT_TRUE(scores.ok()) << scores.status();
  EXPECT_THAT(*scores, ElementsAre(1, IsNan(), -2.5));
  EXPECT_EQ(nlohmann::json::parse(body_), nlohmann::json::parse(
                                              R"({"answers": [
                    {"prompt": "say", "text": "one", "row": {"a": 1}},
                    {"prompt": "", "text": "", "row": {}},
                    {"prompt": "", "text": "", "row": {}}]})"));
}

TEST_F(HttpRewardTest, TroubleThatPassesIsForgotten) {
  failures_ = 2;
  const auto scores = Score(Config());
  ASSERT_TRUE(scores.ok()) << scores.status();
  EXPECT_EQ(requests_, 3);
}

TEST_F(HttpRewardTest, TroubleThatStaysIsTold) {
  failures_ = 100;
  Http config = Config();
  config.set_retries(1);
  EXPECT_EQ(
      Error(config),
      absl::StrCat(config.url(), ": answered 503: \"busy\", after 1 retries"));
  EXPECT_EQ(requests_, 2);
  // It would be answered the same.
  status_ = 400;
  EXPECT_EQ(Error(config),
            absl::StrCat(config.url(), ": answered 400: \"busy\""));
  EXPECT_EQ(requests_, 3);
}

TEST_F(HttpRewardTest, OneThatHangs) {
  Http config = Config("/hang");
  config.set_timeout_seconds(0.1);
  config.set_retries(1);
  EXPECT_THAT(Error(config),
              AllOf(HasSubstr("no reply"), HasSubstr("after 1 retries")));
}

TEST_F(HttpRewardTest, NobodyListens) {
  Http config;
  config.set_url("http://127.0.0.1:1/");
  config.set_retries(0);
  EXPECT_THAT(Error(config), HasSubstr("http://127.0.0.1:1/: no reply: "));
}

TEST_F(HttpRewardTest, LiesAreQuoted) {
  const auto expect = [this](const char* reply, const char* message) {
    reply_ = reply;
    EXPECT_THAT(Error(Config()), HasSubstr(message)) << reply;
  };
  expect("", "\"\" isn't {\"rewards\": [..]}");
  expect("hello", "\"hello\" isn't");
  expect("{\"rewards\": 1}", "isn't {");
  expect("{\"rewards\": [1, 2]}", "there are 2 rewards for 3 answers");
  expect("{\"rewards\": [1, 2, 3, 4]}", "there are 4 rewards for 3 answers");
  expect("{\"rewards\": [1, NaN, 3]}", "isn't {\"rewards\": [..]}");
  expect("{\"rewards\": [1, 1e39, 3]}",
         "of 3 rewards number 2, \"1e+39\", isn't a number or null");
  expect("{\"rewards\": [1, \"2\", 3]}", "number 2, \"\\\"2\\\"\", isn't");
}

TEST_F(HttpRewardTest, WrongConfigs) {
  const auto field = [](const Http& config) {
    return FieldOf(NewHttp(config).status()).value_or("");
  };
  EXPECT_EQ(field({}), "url");
  Http config;
  config.set_url("ftp://x");
  EXPECT_EQ(field(config), "url");
  config = Config();
  config.set_timeout_seconds(-1);
  EXPECT_EQ(field(config), "timeout_seconds");
  config = Config();
  config.set_retries(-1);
  EXPECT_EQ(field(config), "retries");
}

}  // namespace
}  // namespace capstan::grpo
