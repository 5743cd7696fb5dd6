// SPDX-License-Identifier: Apache-2.0
//
// How `who` is started and heard; a script stands in for it.
#include "desk/watch/step_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace capstan {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class StepRowsTest : public ::testing::Test {
 protected:
  StepRowsTest() {
    folder_ = ::testing::TempDir() + "rows_XXXXXX";
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
  }

  // An executable of this shell script.
  std::string Script(const std::string& text) {
    const std::string path = folder_ + "/script";
    std::ofstream(path) << "#!/bin/sh\n" << text << "\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
  }
  bool WaitForFile(const std::string& name) const {
    for (int i = 0; i < 2000; ++i) {
      if (std::filesystem::exists(folder_ + "/" + name)) return true;
      // sleeps: polls
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }
  static bool Never() { return false; }

  std::string folder_;
};

TEST_F(StepRowsTest, TheRowsWithoutTheirTokens) {
  StepRows rows(Script(
      "echo a warning >&2\n"
      "echo \"{\\\"words\\\": \\\"$*\\\", \\\"rows\\\": [{\\\"rank\\\": 1, "
      "\\\"texts\\\": [{\\\"text\\\": \\\"<b>\\\", \\\"tokens\\\": "
      "[1]}]}]}\""));
  const absl::StatusOr<json> found = rows.Find("/some run", 7, Never);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ((*found)["words"], "who /some run --step=7 --top=100 --json");
  EXPECT_EQ((*found)["rows"],
            json::parse("[{\"rank\": 1, \"texts\": [{\"text\": \"<b>\"}]}]"));
}

TEST_F(StepRowsTest, ItsError) {
  StepRows failing(Script("echo 'ERROR: the data have gone' >&2; exit 1"));
  EXPECT_EQ(failing.Find("run", 1, Never).status().message(),
            "the data have gone");
  EXPECT_TRUE(absl::IsInternal(failing.Find("run", 1, Never).status()));
  StepRows beyond(Script("echo 'ERROR: --step: 9 is beyond' >&2; exit 1"));
  EXPECT_TRUE(absl::IsOutOfRange(beyond.Find("run", 9, Never).status()));
  StepRows silent(Script("exit 3"));
  EXPECT_THAT(std::string(silent.Find("run", 1, Never).status().message()),
              HasSubstr("exit code 3"));
  StepRows odd(Script("echo '[]'"));
  EXPECT_FALSE(odd.Find("run", 1, Never).ok());
}

TEST_F(StepRowsTest, TakesNoLongerThanItsLimit) {
  const std::string script =
      Script(absl::StrCat("echo $$ >", folder_, "/pid; exec sleep 1000"));
  StepRows rows(script, /*limit_seconds=*/0.5);
  EXPECT_TRUE(absl::IsDeadlineExceeded(rows.Find("run", 1, Never).status()));
  StepRows stopped(script);
  EXPECT_TRUE(absl::IsCancelled(
      stopped.Find("run", 1, [this] { return WaitForFile("pid"); }).status()));
  pid_t child = 0;
  std::ifstream(folder_ + "/pid") >> child;
  ASSERT_GT(child, 0);
  EXPECT_NE(kill(child, 0), 0) << "it still runs";
}

TEST_F(StepRowsTest, OneAtATime) {
  StepRows rows(Script(
      absl::StrCat("touch ", folder_, "/begun; while [ ! -e ", folder_,
                   "/go ]; do sleep 0.05; done; echo '{\"rows\": []}'")));
  absl::StatusOr<json> first = absl::UnknownError("not yet");
  std::thread thread([&] { first = rows.Find("run", 1, Never); });
  EXPECT_TRUE(WaitForFile("begun"));
  EXPECT_TRUE(absl::IsUnavailable(rows.Find("run", 2, Never).status()));
  std::ofstream(folder_ + "/go") << "\n";
  thread.join();
  EXPECT_TRUE(first.ok()) << first.status();
}

}  // namespace
}  // namespace capstan
