// SPDX-License-Identifier: Apache-2.0
#include "desk/init/ask.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <string>

namespace capstan::init {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::vector<Answer>& Colours() {
  static const auto* const colours = new std::vector<Answer>{
      {"red", "as fire"}, {"green", "as grass"}, {"blue", "as the sea"}};
  return *colours;
}

// What is chosen, and then said in a line, given `input` in a pipe.
std::string FromPipe(const std::string& input, std::string* shown) {
  int in[2], out[2];
  EXPECT_EQ(pipe(in), 0);
  EXPECT_EQ(pipe(out), 0);
  EXPECT_EQ(write(in[1], input.data(), input.size()), input.size());
  close(in[1]);
  Asker asker(in[0], out[1], /*takes_proposals=*/false);
  std::string answers = asker.Choose("Which colour?", Colours(), 1);
  answers += "," + asker.Line("Whose?", "mine", [](const std::string& line) {
    return line == "nobody's" ? "whose, then?" : "";
  });
  close(in[0]);
  close(out[1]);
  char bytes[4096];
  for (ssize_t n = 0; (n = read(out[0], bytes, sizeof(bytes))) > 0;) {
    shown->append(bytes, n);
  }
  close(out[0]);
  return answers;
}

TEST(AskerTest, APipeAnswersByNumbersWordsOrNotAtAll) {
  std::string shown;
  EXPECT_EQ(FromPipe("3\nyours\n", &shown), "blue,yours");
  EXPECT_THAT(shown, HasSubstr("  3) blue   as the sea\n1 to 3 [2]: "));
  EXPECT_THAT(shown, Not(HasSubstr("\x1b")));
  EXPECT_EQ(FromPipe("\n\n", &shown), "green,mine");
  EXPECT_EQ(FromPipe("red\r\nours", &shown), "red,ours");
  EXPECT_EQ(FromPipe("", &shown), "green,mine");
  EXPECT_EQ(FromPipe("1\n", &shown), "red,mine");
}

TEST(AskerTest, WhatIsNoAnswerIsAskedAgain) {
  std::string shown;
  EXPECT_EQ(FromPipe("4\n0\nbl\x1b[2Jue\n1\nnobody's\nhers\n", &shown),
            "red,hers");
  EXPECT_THAT(shown, HasSubstr("\"4\" is none of these"));
  EXPECT_THAT(shown, HasSubstr("whose, then?\n"));
  EXPECT_THAT(shown, Not(HasSubstr("\x1b")));
}

// A child that chooses at a terminal of 30 columns and exits with the answer's
// index; `keys` are typed, or `signal` is sent, once the question is there.
struct Session {
  explicit Session(const std::string& keys, int signal = 0) {
    winsize size = {};
    size.ws_row = 24;
    size.ws_col = 30;
    setenv("TERM", "xterm", 1);
    pid = forkpty(&terminal, nullptr, nullptr, &size);
    if (pid == 0) {
      Asker asker(STDIN_FILENO, STDOUT_FILENO, /*takes_proposals=*/false);
      const std::string answer = asker.Choose("Which colour?", Colours(), 0);
      for (int i = 0; i < 3; ++i) {
        if (answer == Colours()[i].text) _exit(i);
      }
      _exit(99);
    }
    // The keys are read without echo only after the last line was drawn.
    while (screen.find("blue") == std::string::npos && Read()) {
    }
    EXPECT_EQ(write(terminal, keys.data(), keys.size()), keys.size());
    if (signal != 0) {
      EXPECT_EQ(kill(pid, signal), 0);
    }
    while (Read()) {
    }
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
  }
  ~Session() { close(terminal); }

  bool Read() {
    char bytes[256];
    const ssize_t count = read(terminal, bytes, sizeof(bytes));
    if (count > 0) screen.append(bytes, count);
    return count > 0;
  }

  int terminal = -1;
  pid_t pid = -1;
  int status = 0;
  std::string screen;
};

TEST(AskerTest, ArrowKeysChooseAtATerminal) {
  const std::string down = "\x1b[B", up = "\x1b[A";
  EXPECT_EQ(WEXITSTATUS(Session("\r").status), 0);
  EXPECT_EQ(WEXITSTATUS(Session(down + "\r").status), 1);
  EXPECT_EQ(WEXITSTATUS(Session(down + down + down + "\r").status), 2);
  EXPECT_EQ(WEXITSTATUS(Session(down + down + up + "\n").status), 1);
  EXPECT_EQ(WEXITSTATUS(Session(up + "3\r").status), 2);
  EXPECT_EQ(WEXITSTATUS(Session("\x04").status), 0);
  const Session session(down + "\r");
  EXPECT_THAT(session.screen, HasSubstr("Which colour? green\r\n"));
}

void ExpectEndAndRestore(const Session& session, int signal) {
  ASSERT_TRUE(WIFSIGNALED(session.status));
  EXPECT_EQ(WTERMSIG(session.status), signal);
  termios now;
  ASSERT_EQ(tcgetattr(session.terminal, &now), 0);
  EXPECT_NE(now.c_lflag & ICANON, 0);
  EXPECT_NE(now.c_lflag & ECHO, 0);
}

TEST(AskerTest, SignalsEndTheProgramAndRestoreTheTerminal) {
  ExpectEndAndRestore(Session("\x03"), SIGINT);
  ExpectEndAndRestore(Session("", SIGTERM), SIGTERM);
  ExpectEndAndRestore(Session("", SIGHUP), SIGHUP);
}

}  // namespace
}  // namespace capstan::init
