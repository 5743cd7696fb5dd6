// SPDX-License-Identifier: Apache-2.0
//
// The child executable is this test itself; its filter selects what it does.
#include "desk/compare/trainer_child.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <sstream>

namespace capstan {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> Only(const std::string& test) {
  return {"--gtest_also_run_disabled_tests",
          "--gtest_filter=ChildTest.DISABLED_" + test};
}

std::string LogPath() { return ::testing::TempDir() + "child_output.txt"; }

std::string ReadLog() {
  std::ifstream file(LogPath());
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(ChildTest, DISABLED_Sleeps) { sleep(60); }

TEST(ChildTest, DISABLED_IgnoresSignals) {
  signal(SIGINT, SIG_IGN);
  signal(SIGTERM, SIG_IGN);
  for (int i = 0; i < 60; ++i) sleep(1);
}

TEST(ChildTest, DISABLED_Fails) {
  fprintf(stderr, "ERROR: it is broken\n");
  _exit(3);
}

TEST(TrainerChildTest, KeepsWhatItPrints) {
  int ticks = 0;
  const auto result =
      RunTrainerChild({"--gtest_list_tests"}, LogPath(), [&] { ++ticks; });
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->end.ok());
  EXPECT_EQ(result->stop_signal, 0);
  EXPECT_THAT(ReadLog(), HasSubstr("KeepsWhatItPrints"));
  EXPECT_GE(ticks, 1);
}

TEST(TrainerChildTest, SaysHowItFailed) {
  const auto result = RunTrainerChild(Only("Fails"), LogPath(), [] {});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->end.code, 3);
  EXPECT_EQ(WhyItFailed(result->end, ReadLog()), "it is broken");
}

// The second child ignores the request to stop, and is killed.
TEST(TrainerChildTest, ASignalToUsEndsIt) {
  for (const char* child : {"Sleeps", "IgnoresSignals"}) {
    const auto start = std::chrono::steady_clock::now();
    int ticks = 0;
    const auto result = RunTrainerChild(Only(child), LogPath(), [&] {
      // By now it has started.
      if (++ticks == 4) kill(getpid(), SIGINT);
    });
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->stop_signal, SIGINT);
    EXPECT_GT(result->end.signal, 0) << child;
    EXPECT_LT(std::chrono::steady_clock::now() - start,
              std::chrono::seconds(40));
  }
}

TEST(TrainerChildTest, AnOutputThatCantBeWritten) {
  const auto result =
      RunTrainerChild({"--gtest_list_tests"}, "/nowhere/log.txt", [] {});
  EXPECT_THAT(std::string(result.status().message()),
              HasSubstr("/nowhere/log.txt can't be written"));
}

TEST(WhyItFailedTest, ItsLastErrorElseHowItEnded) {
  ChildEnd end;
  end.code = 7;
  EXPECT_EQ(WhyItFailed(end, "step 1\nERROR: [rank 1] no memory\n"),
            "[rank 1] no memory");
  EXPECT_EQ(WhyItFailed(end, ""), "it ended with exit code 7");
  end.code = -1;
  end.signal = SIGKILL;
  EXPECT_EQ(WhyItFailed(end, "step 1\nstep 2\n"),
            "it was ended by SIGKILL after: step 2");
}

}  // namespace
}  // namespace capstan
