// SPDX-License-Identifier: Apache-2.0
//
// Programs that score answers, most of them badly.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/scratch_folder.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "plugins/grpo/rewards/kinds.h"
#include "plugins/grpo/rewards/reply.h"

namespace capstan::grpo {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsNan;

constexpr double kLongSeconds = 60.0;

// Scores a text by its length, or by what `score` makes of the object `a`.
std::string Python(const std::string& score = "len(a['text'])",
                   const std::string& before = "") {
  return absl::StrCat("import json, os, sys, time\n", before,
                      "\nfor line in sys.stdin:\n"
                      "    a = json.loads(line)\n"
                      "    print(",
                      score, ", flush=True)\n");
}

Program PythonProgram(const std::string& source) {
  Program config;
  for (const std::string& word :
       {std::string("/usr/bin/python3"), std::string("-c"), source}) {
    config.add_command(word);
  }
  return config;
}

Program Shell(const std::string& script) {
  Program config;
  for (const std::string& word :
       {std::string("/bin/sh"), std::string("-c"), script}) {
    config.add_command(word);
  }
  return config;
}

std::vector<Answer> Answers(const std::vector<std::string>& texts) {
  std::vector<Answer> answers(texts.size());
  for (size_t i = 0; i < texts.size(); ++i) answers[i].text = texts[i];
  return answers;
}

absl::StatusOr<std::vector<double>> ScoresOf(
    const Program& config, const std::vector<std::string>& texts) {
  const MadeReward reward = NewProgram(config);
  EXPECT_TRUE(reward.ok()) << reward.status();
  return (*reward)->Score(Answers(texts));
}

std::string ErrorOf(const Program& config,
                    const std::vector<std::string>& texts = {"a", "b", "c"}) {
  const auto scores = ScoresOf(config, texts);
  EXPECT_FALSE(scores.ok());
  return std::string(scores.status().message());
}

// Whether `path`, a file with a process's number, names one that ends before
// long, or has.
void ExpectEnds(const std::string& path) {
  pid_t process = 0;
  ASSERT_TRUE(absl::SimpleAtoi(ReadWholeFile(path).value(), &process));
  const double deadline = MonotonicSeconds() + kLongSeconds;
  std::string stat;
  do {
    // A zombie whose parent is init may wait to be waited for.
    const auto read = ReadWholeFile(absl::StrCat("/proc/", process, "/stat"));
    if (!read.ok() || absl::StrContains(*read, ") Z ")) return;
    usleep(1000);  // sleeps: between looks, up to the limit
  } while (MonotonicSeconds() < deadline);
  ADD_FAILURE() << process << " lives";
}

TEST(ProgramRewardTest, ScoresInOrder) {
  const MadeReward reward = NewProgram(
      PythonProgram(Python("{'n': os.getpid()}.get(a['text'], len(a['text']) + "
                           "a['row'].get('more', 0) + len(a['prompt']) / 2)")));
  std::vector<Answer> answers = Answers({"a", "bb\n\"\xff", ""});
  answers[0].row = "{\"more\":\n10}";
  answers[1].prompt = "pro";
  auto scores = (*reward)->Score(answers);
  ASSERT_TRUE(scores.ok()) << scores.status();
  EXPECT_THAT(*scores, ElementsAre(11, 6.5, 0));
  // It is the same one all the time.
  const double pid = (*reward)->Score(Answers({"n"})).value()[0];
  scores = (*reward)->Score(Answers({"a", "n"}));
  ASSERT_TRUE(scores.ok()) << scores.status();
  EXPECT_THAT(*scores, ElementsAre(1, pid));
  EXPECT_TRUE((*reward)->Score({}).value().empty());
}

TEST(ProgramRewardTest, ObjectsAndNulls) {
  const auto scores =
      ScoresOf(PythonProgram(Python(
                   "{'o': '{\"reward\": -1.5, \"why\": 2}', 'n': 'null', "
                   "'m': '{\"reward\": null}\\r'}[a['text']]")),
               {"o", "n", "m"});
  ASSERT_TRUE(scores.ok()) << scores.status();
  EXPECT_THAT(*scores, ElementsAre(-1.5, IsNan(), IsNan()));
}

// More than pipes hold, of a program that writes before it has read all.
TEST(ProgramRewardTest, ManyLongAnswers) {
  const std::vector<std::string> texts(300, std::string(10'000, 'x'));
  const auto scores =
      ScoresOf(PythonProgram(Python("' ' * 3000 + '7'")), texts);
  ASSERT_TRUE(scores.ok()) << scores.status();
  EXPECT_EQ(*scores, std::vector<double>(300, 7.0));
}

TEST(ProgramRewardTest, LiesAreQuoted) {
  for (const char* const lie :
       {"NaN", "Infinity", "good", "1 2", "[1]", "{}", "\"1\"", "true", "",
        "{\"reward\": \"1\"}", "{\"reward\": NaN}", "1e39", "nan"}) {
    EXPECT_THAT(
        ErrorOf(Shell(absl::StrCat("read a; read b; read c; echo 1; echo '",
                                   lie, "'; echo 3; read d"))),
        AllOf(HasSubstr("the program /bin/sh said of answer 2 of 3: "),
              HasSubstr(
                  absl::StrCat(nlohmann::json(lie).dump(), " isn't a number"))))
        << lie;
  }
  // One that is long is cut.
  EXPECT_LT(ErrorOf(Shell("read a; printf '%20000d!\\n' 1; read d")).size(),
            500u);
}

TEST(ProgramRewardTest, TooManyLines) {
  EXPECT_THAT(
      ErrorOf(
          Shell("read a; read b; read c; printf '1\\n2\\n3\\n4\\n'; read d")),
      HasSubstr("said \"4\", which nobody asked for; print one line for each "
                "answer"));
  EXPECT_THAT(ErrorOf(Shell("read a; read b; read c; printf '1\\n2\\n3\\n4'; "
                            "read d")),
              HasSubstr("said \"4\", which nobody asked for"));
  // Also between questions.
  const MadeReward reward = NewProgram(Shell(
      "read a; echo 1; read b; while true; do echo more; sleep 0.01; done"));
  EXPECT_THAT((*reward)->Score(Answers({"a"})).value(), ElementsAre(1));
  EXPECT_THAT(std::string((*reward)->Score(Answers({"b"})).status().message()),
              HasSubstr("\"more\" isn't a number"));
}

// Soon after the last line that was asked for, which is read before.
TEST(ProgramRewardTest, ALineTooManyIsToldAtItsBatchsEnd) {
  const Program config = PythonProgram(
      // sleeps: so that the first line is read alone
      Python("'1', flush=True) or time.sleep(0.001) or print('more'"));
  // On a busy machine it may come too late for one of the looks.
  absl::StatusOr<std::vector<double>> scores;
  for (int tries = 0; tries < 50; ++tries) {
    scores = ScoresOf(config, {"a"});
    if (!scores.ok()) break;
  }
  EXPECT_THAT(std::string(scores.status().message()),
              HasSubstr("said \"more\", which nobody asked for"));
}

TEST(ProgramRewardTest, OneThatFloodsItsOutput) {
  EXPECT_THAT(ErrorOf(Shell("read a; yes 1")),
              HasSubstr("said \"1\", which nobody asked for"));
  EXPECT_THAT(ErrorOf(Shell("read a; cat /dev/zero")),
              HasSubstr("or without an end"));
}

TEST(ProgramRewardTest, OneThatDiesIsStartedAnew) {
  const ScratchFolder folder;
  // Its first life ends after an answer, which isn't that of its second one.
  const std::string lives = folder.path() + "/lives";
  Program config = PythonProgram(
      Python("len(a['text']) if old else 5, flush=True) or old or sys.exit(3",
             absl::StrCat("old = os.path.exists('", lives, "')\nopen('", lives,
                          "', 'a').write('x')")));
  const auto scores = ScoresOf(config, {"a", "bb", "ccc"});
  ASSERT_TRUE(scores.ok()) << scores.status();
  EXPECT_THAT(*scores, ElementsAre(1, 2, 3));
  EXPECT_EQ(ReadWholeFile(lives).value(), "xx");
  config = Shell("read a; echo 5; exit 3");
  EXPECT_EQ(ErrorOf(config, {"a", "b", "c", "d"}),
            "the program /bin/sh ended with exit code 3, asked for answer 2 of "
            "4, after 2 restarts; look at what it printed, or raise restarts");
  config.set_restarts(0);
  EXPECT_THAT(ErrorOf(config),
              HasSubstr("asked for answer 2 of 3, after 0 restarts"));
  EXPECT_THAT(ErrorOf(Shell("kill -9 $$")), HasSubstr("ended with signal 9"));
}

TEST(ProgramRewardTest, OneThatCantBeStarted) {
  Program config;
  config.add_command("no-such-program");
  EXPECT_EQ(ErrorOf(config),
            "the program no-such-program can't be started: no-such-program: No "
            "such file or directory");
}

TEST(ProgramRewardTest, OneThatHangs) {
  Program config = Shell("read line; echo 1; sleep 1000");
  config.set_timeout_seconds(0.2);
  config.set_restarts(0);
  // Under load it may not have said anything.
  EXPECT_THAT(ErrorOf(config),
              AllOf(HasSubstr("the program /bin/sh said "),
                    HasSubstr(" of 3 lines within 0.2 s, asked for answer "),
                    HasSubstr(", after 0 restarts; look at what it printed, or "
                              "raise timeout_seconds")));
  // One that hangs now and then loses nothing.
  const ScratchFolder folder;
  config = Shell(absl::StrCat("cd ", folder.path(),
                              "; read a; echo 1; test -e hung || { touch hung; "
                              "sleep 1000; }; read a; echo 2; read a; echo 3"));
  config.set_timeout_seconds(5);
  const auto scores = ScoresOf(config, {"a", "b", "c"});
  ASSERT_TRUE(scores.ok()) << scores.status();
  EXPECT_THAT(*scores, ElementsAre(1, 2, 3));
}

// A later answer's isn't taken for its.
TEST(ProgramRewardTest, OneThatLeavesALineOut) {
  Program config = PythonProgram(Python("len(a['text'])",
                                        "print = lambda x, flush: x == 2 "
                                        "or sys.stdout.write(f'{x}\\n') "
                                        "and sys.stdout.flush()"));
  config.set_timeout_seconds(1);
  config.set_restarts(1);
  ::testing::internal::CaptureStderr();
  EXPECT_THAT(ErrorOf(config, {"a", "bb", "ccc"}),
              HasSubstr("after 1 restart;"));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("asked for answer 3 of 3: it is started anew"));
  EXPECT_THAT(*ScoresOf(config, {"a", "ccc"}), ElementsAre(1, 3));
}

TEST(ProgramRewardTest, OneThatClosesItsInputOrOutput) {
  Program config = Shell("exec 0<&-; sleep 1000");
  config.set_restarts(1);
  EXPECT_THAT(
      ErrorOf(config, std::vector<std::string>(100, std::string(100'000, 'x'))),
      HasSubstr("closed its standard input and runs on"));
  config = Shell("exec 1>&-; sleep 1000");
  config.set_restarts(0);
  EXPECT_THAT(ErrorOf(config),
              HasSubstr("closed its standard output and runs on"));
}

TEST(ProgramRewardTest, WhatItStartsEndsWithIt) {
  const ScratchFolder folder;
  const std::string file = folder.path() + "/pid";
  {
    const auto scores =
        ScoresOf(Shell(absl::StrCat("sleep 1000 & echo $! > ", file,
                                    "; read a; echo 1; wait")),
                 {"a"});
    ASSERT_TRUE(scores.ok()) << scores.status();
  }
  ExpectEnds(file);
}

// As a rank that is killed: nothing runs its destructors.
TEST(ProgramRewardTest, EndsWhenThisProcessIsKilled) {
  const ScratchFolder folder;
  const std::string own = folder.path() + "/own";
  const std::string started = folder.path() + "/started";
  const pid_t rank = Fork();
  if (rank == 0) {
    const MadeReward reward = NewProgram(
        Shell(absl::StrCat("echo $$ > ", own, "; sleep 1000 & echo $! > ",
                           started, "; read a; echo 1; wait")));
    if (!(*reward)->Score(Answers({"a"})).ok()) _exit(1);
    kill(getpid(), SIGKILL);
  }
  EXPECT_EQ(WaitFor(rank).signal, SIGKILL);
  ExpectEnds(own);
  ExpectEnds(started);
}

TEST(ProgramRewardTest, WrongConfigs) {
  const auto field = [](const Program& config) {
    return FieldOf(NewProgram(config).status()).value_or("");
  };
  EXPECT_EQ(field({}), "command");
  Program config = Shell("cat");
  config.set_timeout_seconds(0);
  EXPECT_EQ(field(config), "timeout_seconds");
  config.clear_timeout_seconds();
  config.set_restarts(-1);
  EXPECT_EQ(field(config), "restarts");
}

}  // namespace
}  // namespace capstan::grpo
