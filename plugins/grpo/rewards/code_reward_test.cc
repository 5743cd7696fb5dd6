// SPDX-License-Identifier: Apache-2.0
//
// Code that models might write.
#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/scratch_folder.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "plugins/grpo/rewards/kinds.h"

namespace capstan::grpo {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsNan;

constexpr char kAsserts[] =
    "{\"tests\": [\"assert f(2) == 4\", \"assert f(3) == 9\", "
    "\"assert f(0) == 0\"]}";
constexpr char kPairs[] =
    "{\"tests\": [{\"input\": \"2\\n\", \"output\": \"4\\n\"}, "
    "{\"input\": \"3\", \"output\": \"9\"}]}";

Code Config(const std::string& text = "") {
  Code config;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &config));
  if (config.interpreter_size() == 0) {
    config.add_interpreter("/usr/bin/python3");
  }
  return config;
}

std::vector<double> Scores(const Code& config, const std::string& row,
                           const std::vector<std::string>& texts) {
  const MadeReward reward = NewCode(config);
  EXPECT_TRUE(reward.ok()) << reward.status();
  std::vector<Answer> answers(texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    answers[i].text = texts[i];
    answers[i].row = row;
  }
  const auto scores = (*reward)->Score(answers);
  EXPECT_TRUE(scores.ok()) << scores.status();
  return scores.ok() ? *scores : std::vector<double>();
}

TEST(CodeRewardTest, TheShareOfTestsThatPass) {
  EXPECT_THAT(
      Scores(Config(), kAsserts,
             {"```python\ndef f(x): return 7\n```\nBetter:\n"
              "```python\ndef f(x):\n    return x * x\n```\nDone.",
              "def f(x): return 2 * x", "def f(x): return", "I can't."}),
      ElementsAre(1, DoubleNear(2.0 / 3, 1e-12), 0, 0));
  EXPECT_THAT(Scores(Config("all_or_nothing: true"), kAsserts,
                     {"def f(x): return x * x", "def f(x): return 2 * x"}),
              ElementsAre(1, 0));
  EXPECT_THAT(Scores(Config("field: 'check'"),
                     "{\"check\": \"assert f(1)\\nassert f(2)\"}",
                     {"def f(x): return x", "def f(x): return x - 1"}),
              ElementsAre(1, 0));
}

TEST(CodeRewardTest, InputsAndOutputs) {
  EXPECT_THAT(Scores(Config(), kPairs,
                     {"x = int(input())\nprint(x * x, '\\n')", "print(4)",
                      "print(input())",
                      "import sys\nx = int(input())\n"
                      "print('warning', file=sys.stderr); print(x * x)"}),
              ElementsAre(1, 0.5, 0, 1));
}

TEST(CodeRewardTest, WhatEndsBeforeTheTestFails) {
  EXPECT_THAT(Scores(Config(), kAsserts,
                     {"raise SystemExit(0)", "import os; os._exit(0)",
                      "print('end')\nexit()",
                      "import os\nos.execv('/bin/true', ['true'])"}),
              ElementsAre(0, 0, 0, 0));
}

TEST(CodeRewardTest, HostileCode) {
  ASSERT_EQ(setenv("CAPSTAN_TEST_SECRET", "s3cret", 1), 0);
  const std::string attempts[] = {
      "import os; assert not os.environ.get('CAPSTAN_TEST_SECRET')",
      "import os\ntry:\n    os.fork(); ok = False\nexcept OSError: ok = True\n"
      "assert ok",
      "import socket\ntry:\n    socket.socket(); ok = False\n"
      "except OSError: ok = True\nassert ok",
      "import os\ntry:\n    os.kill(os.getppid(), 9); ok = False\n"
      "except OSError: ok = True\nassert ok",
  };
  for (const std::string& attempt : attempts) {
    EXPECT_THAT(
        Scores(Config(), kAsserts, {attempt + "\ndef f(x): return x * x"}),
        ElementsAre(1))
        << attempt;
  }
  EXPECT_THAT(Scores(Config("cpu_seconds: 1 parallel: 4"), kPairs,
                     {"while True: pass", "while True: print('x' * 10000)",
                      // sleeps: a program that hangs
                      "x = bytearray(1 << 40)", "import time; time.sleep(1000)",
                      // Ours reads from what it has opened.
                      "import os\nos.remove('output'); os.mkfifo('output')",
                      "import os\nos.remove('output')\n"
                      "os.symlink('/dev/zero', 'output')"}),
              ElementsAre(0, 0, 0, 0, 0, 0));
}

TEST(CodeRewardTest, NothingIsLeftBehind) {
  const ScratchFolder folder;
  const char* const before = getenv("TMPDIR");
  const std::string saved = before == nullptr ? "" : before;
  ASSERT_EQ(setenv("TMPDIR", folder.path().c_str(), 1), 0);
  EXPECT_THAT(Scores(Config(), kAsserts,
                     {"import os, tempfile\nos.makedirs('a/b')\n"
                      "open('a/b/c', 'w').write('x')\ntempfile.mkdtemp()\n"
                      "def f(x): return x * x"}),
              ElementsAre(1));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  saved.empty() ? unsetenv("TMPDIR") : setenv("TMPDIR", saved.c_str(), 1);
}

// The run is killed while a test runs.
TEST(CodeRewardTest, NothingIsLeftBehindByWhoIsKilled) {
  // Children of a child that has ended become this process's.
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  const ScratchFolder outside;
  const std::string pipe = absl::StrCat(outside.path(), "/pipe");
  const std::string scratch = absl::StrCat(outside.path(), "/scratch");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  ASSERT_TRUE(std::filesystem::create_directory(scratch));
  const pid_t child = Fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    setenv("TMPDIR", scratch.c_str(), 1);
    Scores(Config("cpu_seconds: 1000"), kAsserts,
           {absl::StrCat("import signal\nopen('", pipe, "').read()\n",
                         "signal.pause()")});
    _exit(1);
  }
  std::ofstream(pipe) << "the test runs";
  EXPECT_FALSE(std::filesystem::is_empty(scratch));
  kill(child, SIGKILL);
  while (wait(nullptr) > 0) {
  }
  EXPECT_TRUE(std::filesystem::is_empty(scratch));
}

TEST(CodeRewardTest, OthersInterpreters) {
  EXPECT_THAT(Scores(Config("interpreter: '/bin/sh' interpreter: '-e' "
                            "print: 'echo {}'"),
                     "{\"tests\": \"test $x = 3\"}", {"x=3", "x=4"}),
              ElementsAre(1, 0));
}

TEST(CodeRewardTest, AnInterpreterThatDoesntWorkIsAnError) {
  const auto error = [](const Code& config) {
    Answer answer;
    answer.row = kAsserts;
    return std::string(
        NewCode(config).value()->Score({answer}).status().message());
  };
  EXPECT_THAT(error(Config("interpreter: 'no-such-program'")),
              HasSubstr("no no-such-program in PATH"));
  EXPECT_THAT(error(Config("interpreter: '/no/such/file'")),
              HasSubstr("/no/such/file: No such file"));
  // print isn't a command of shells.
  EXPECT_THAT(error(Config("interpreter: '/bin/sh'")),
              HasSubstr("/bin/sh doesn't run in the sandbox, or not to the end "
                        "of `print(\"{}\")`"));
}

TEST(CodeRewardTest, Rows) {
  const MadeReward reward = NewCode(Config());
  const auto message = [&](const char* row) {
    return std::string((*reward)->CheckRow(row).message());
  };
  EXPECT_EQ(message(kAsserts), "");
  EXPECT_EQ(message(kPairs), "");
  EXPECT_EQ(message("{\"tests\": null}"), "");
  EXPECT_THAT(message("{\"test\": 1}"), HasSubstr("no field \"tests\""));
  EXPECT_THAT(message("{\"tests\": []}"), HasSubstr("has no tests"));
  EXPECT_THAT(message("{\"tests\": [7]}"), HasSubstr("has \"7\", which is"));
  EXPECT_THAT(Scores(Config(), "{\"tests\": null}", {"x"}),
              ElementsAre(IsNan()));
}

TEST(CodeRewardTest, WrongConfigs) {
  const auto field = [](const std::string& text) {
    return FieldOf(NewCode(Config(text)).status()).value_or("");
  };
  EXPECT_EQ(field("field: ''"), "field");
  EXPECT_EQ(field("print: 'print(1)'"), "print");
  EXPECT_EQ(field("cpu_seconds: 0"), "cpu_seconds");
  EXPECT_EQ(field("memory_mib: -1"), "memory_mib");
  EXPECT_EQ(field("parallel: 0"), "parallel");
}

}  // namespace
}  // namespace capstan::grpo
