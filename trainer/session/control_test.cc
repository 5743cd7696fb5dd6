// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/control.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

namespace capstan {
namespace {

using ::testing::HasSubstr;

TEST(ParseRequest, WhatCanBeAsked) {
  std::string id;
  absl::StatusOr<Request> request =
      ParseRequest(R"({"id": "a1", "do": "save"})", &id);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->what, Request::What::kSave);
  EXPECT_EQ(request->id, "a1");
  request = ParseRequest(R"({"do": "stop"})", &id);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->what, Request::What::kStop);
  EXPECT_EQ(id, "");
  request = ParseRequest(R"({"do": "max_steps", "value": 500})", &id);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->what, Request::What::kMaxSteps);
  EXPECT_EQ(request->value, 500);
}

TEST(ParseRequest, WhatCannot) {
  const auto error_of = [](const std::string& line) {
    std::string id;
    return std::string(ParseRequest(line, &id).status().message());
  };
  EXPECT_THAT(error_of("stop"), HasSubstr("isn't a JSON object"));
  EXPECT_THAT(error_of("[]"), HasSubstr("isn't a JSON object"));
  EXPECT_THAT(error_of("{}"), HasSubstr("save, stop or max_steps, is \"\""));
  EXPECT_THAT(error_of(R"({"do": 3})"), HasSubstr("save, stop or max_steps"));
  EXPECT_THAT(error_of(R"({"do": "sleep"})"), HasSubstr("is \"sleep\""));
  for (const char* value : {"0", "-1", "1.5", "\"9\"", "1e30"}) {
    EXPECT_THAT(
        error_of(std::string(R"({"do": "max_steps", "value": )") + value + "}"),
        HasSubstr("a whole number above 0"))
        << value;
  }
  EXPECT_THAT(error_of(R"({"do": "max_steps"})"), HasSubstr("\"value\""));
  // Even then the answer can be found by its asker.
  std::string id;
  EXPECT_FALSE(ParseRequest(R"({"id": "b", "do": "sleep"})", &id).ok());
  EXPECT_EQ(id, "b");
}

class ControlFileTest : public ::testing::Test {
 protected:
  ControlFileTest() {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }

  void Append(const std::string& text) {
    std::ofstream(path_, std::ios::app) << text;
  }

  const std::string folder_ = ::testing::TempDir() + "/control_file_test";
  const std::string path_ = folder_ + "/control.jsonl";
  ControlFile file_;
};

TEST_F(ControlFileTest, NothingUntilItBegins) {
  Append("old\n");
  EXPECT_FALSE(file_.Grown());
  EXPECT_EQ(file_.NewLines(), "");
}

TEST_F(ControlFileTest, GivesEachWholeLineOnce) {
  Append("asked of the process before\n");
  ASSERT_TRUE(file_.Begin(folder_, /*restarted=*/false).ok());
  EXPECT_FALSE(file_.Grown());
  Append("one\ntw");
  EXPECT_TRUE(file_.Grown());
  EXPECT_EQ(file_.NewLines(), "one\n");
  EXPECT_FALSE(file_.Grown());
  Append("o\n");
  EXPECT_TRUE(file_.Grown());
  EXPECT_EQ(file_.NewLines(), "two\n");
  EXPECT_EQ(file_.NewLines(), "");
}

// And takes nothing.
TEST_F(ControlFileTest, KnowsWhetherItAsksToStop) {
  ASSERT_TRUE(file_.Begin(folder_, /*restarted=*/false).ok());
  const std::string save = R"({"do": "save"})", stop = R"({"do": "stop"})";
  Append(save + "\n" + stop);
  EXPECT_FALSE(file_.AsksToStop());
  Append("\n");
  EXPECT_TRUE(file_.AsksToStop());
  EXPECT_TRUE(file_.AsksToStop());
  EXPECT_EQ(file_.NewLines(), save + "\n" + stop + "\n");
  EXPECT_FALSE(file_.AsksToStop());
}

TEST_F(ControlFileTest, AfterARestartItBeginsWithWhatIsThere) {
  Append("one\n");
  ASSERT_TRUE(file_.Begin(folder_, /*restarted=*/true).ok());
  EXPECT_EQ(file_.NewLines(), "one\n");
}

// Except for the end, which the process before had only in memory.
TEST_F(ControlFileTest, AfterARestartWhatWasAnsweredIsNotAskedAgain) {
  const std::string end = R"({"id": "e", "do": "max_steps", "value": 5})";
  const std::string save = R"({"id": "s", "do": "save"})";
  Append(save + "\n" + end + "\n" +
         R"({"id": "r", "do": "max_steps", "value": 1})" + "\n" +
         R"({"do": "save"})" + "\n" + R"({"id": "n", "do": "save"})" + "\n");
  std::ofstream(folder_ + "/events.jsonl")
      << R"({"kind": "control", "text": "step 1 is being saved", "id": "s"})"
      << "\n"
      << R"({"kind": "control", "text": "the run ends", "id": "e"})"
      << "\n"
      << R"({"kind": "control", "text": "refused: no", "id": "r"})"
      << "\n"
      << R"({"kind": "control", "text": "step 2 is being saved"})"
      << "\n"
      << R"({"kind": "note", "text": "control", "id": "n"})"
      << "\ntorn";
  ASSERT_TRUE(file_.Begin(folder_, /*restarted=*/true).ok());
  EXPECT_EQ(file_.NewLines(), end + "\n" + R"({"do": "save"})" + "\n" +
                                  R"({"id": "n", "do": "save"})" + "\n");
  // An asker may use an id again.
  Append(save + "\n");
  EXPECT_EQ(file_.NewLines(), save + "\n");
}

TEST_F(ControlFileTest, AFileThatOthersCutOrFill) {
  ASSERT_TRUE(file_.Begin(folder_, /*restarted=*/false).ok());
  Append("a line\n");
  EXPECT_EQ(file_.NewLines(), "a line\n");
  std::ofstream(path_) << "new\n";
  EXPECT_TRUE(file_.Grown());
  EXPECT_EQ(file_.NewLines(), "new\n");
  // A piece at a time, and never stuck.
  Append(std::string(1 << 18, 'x') + "\nlast\n");
  std::string all;
  for (int i = 0; i < 10 && file_.Grown(); ++i) all += file_.NewLines();
  EXPECT_THAT(all, HasSubstr("\nlast\n"));
  std::remove(path_.c_str());
  EXPECT_EQ(file_.NewLines(), "");
}

// Its end would be a request.
TEST_F(ControlFileTest, ALineThatIsTooLongIsRefusedOnce) {
  ASSERT_TRUE(file_.Begin(folder_, /*restarted=*/false).ok());
  for (const int bytes : {1 << 16, (1 << 18) + 5}) {
    Append(std::string(bytes, 'x') + R"({"do": "stop"})" + "\nnext\n");
    std::string all;
    for (int i = 0; i < 10 && file_.Grown(); ++i) all += file_.NewLines();
    const std::string refused = all.substr(0, all.find('\n'));
    EXPECT_EQ(all, refused + "\nnext\n");
    std::string id;
    EXPECT_THAT(std::string(ParseRequest(refused, &id).status().message()),
                HasSubstr("65536 bytes or more"));
  }
}

}  // namespace
}  // namespace capstan
