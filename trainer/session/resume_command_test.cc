// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/resume_command.h"

#include <gtest/gtest.h>
#include <stdlib.h>

namespace capstan {
namespace {

TEST(ResumeCommandTest, AddsWhatTheWordsLack) {
  RunConfig config;
  EXPECT_EQ(ResumeCommand({"trainer", "--config=a.pbtxt"}, config, "/out"),
            "trainer --config=a.pbtxt --set train.resume=AUTO --set "
            "output_dir=/out");
  config.set_output_dir("/out");
  config.mutable_train()->set_resume(Train::AUTO);
  EXPECT_EQ(ResumeCommand({"trainer", "--config=a.pbtxt"}, config, "/out"),
            "trainer --config=a.pbtxt");
  EXPECT_EQ(ResumeCommand({}, config, "/out"), "");
}

TEST(ResumeCommandTest, QuotesForAShell) {
  RunConfig config;
  config.set_output_dir("/out");
  config.mutable_train()->set_resume(Train::AUTO);
  EXPECT_EQ(ResumeCommand({"trainer", "my run.pbtxt", "it's", ""}, config, ""),
            "trainer 'my run.pbtxt' 'it'\\''s' ''");
}

TEST(CommandWordsTest, AreWhatAUserTypes) {
  const char* const argv[] = {"/somewhere/trainer", "--config=a.pbtxt"};
  unsetenv("BUILD_WORKSPACE_DIRECTORY");
  EXPECT_EQ(
      CommandWords(2, argv),
      std::vector<std::string>({"/somewhere/trainer", "--config=a.pbtxt"}));
  setenv("BUILD_WORKSPACE_DIRECTORY", "/workspace", 1);
  EXPECT_EQ(CommandWords(2, argv),
            std::vector<std::string>(
                {"bazel", "run", "//trainer", "--", "--config=a.pbtxt"}));
}

}  // namespace
}  // namespace capstan
