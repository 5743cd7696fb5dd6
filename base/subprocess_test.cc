// SPDX-License-Identifier: Apache-2.0
#include "base/subprocess.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/time.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdio>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"

namespace capstan {
namespace {

using ::testing::HasSubstr;

// Far more than anything here takes.
constexpr double kLongSeconds = 60.0;

Program Shell(const std::string& script) {
  Program program;
  program.words = {"sh", "-c", script};
  return program;
}

// Until all writers are gone.
std::string ReadAll(int fd) {
  std::string text;
  char buffer[256];
  for (ssize_t size; (size = read(fd, buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, size);
  }
  return text;
}

// What the program prints on standard output and standard error.
std::string OutputOf(Program program) {
  Pipe pipe;
  EXPECT_TRUE(pipe.ok());
  program.output = program.errors = pipe.write_end();
  const absl::StatusOr<pid_t> child = StartProgram(program);
  EXPECT_TRUE(child.ok()) << child.status();
  if (!child.ok()) return "";
  pipe.CloseWrite();
  const std::string text = ReadAll(pipe.read_end());
  EXPECT_TRUE(WaitFor(*child).ok());
  return text;
}

// Whether all writers are gone before long.
bool AllGone(const Pipe& pipe) {
  pollfd gone = {pipe.read_end(), 0, 0};
  return poll(&gone, 1, static_cast<int>(1000 * kLongSeconds)) == 1;
}

void ExpectNoChildren() {
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
  EXPECT_EQ(errno, ECHILD);
}

TEST(RunProgramTest, SaysHowItEnded) {
  auto end = RunProgram(Shell("exit 0"));
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_TRUE(end->ok());
  end = RunProgram(Shell("exit 3"));
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_FALSE(end->ok());
  EXPECT_EQ(end->code, 3);
  EXPECT_EQ(end->Text(), "exit code 3");
  end = RunProgram(Shell("kill -9 $$"));
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_FALSE(end->ok());
  EXPECT_EQ(end->signal, SIGKILL);
  EXPECT_EQ(end->Text(), "signal 9");
}

TEST(RunProgramTest, AProgramThatCantBeStartedIsNamed) {
  Program program;
  program.words = {"no-such-program"};
  absl::Status status = RunProgram(program).status();
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_EQ(status.message(), "no-such-program: No such file or directory");
  program.path = "/dev/null";
  status = RunProgram(program).status();
  EXPECT_TRUE(absl::IsPermissionDenied(status));
  EXPECT_EQ(status.message(), "/dev/null: Permission denied");
  program = Shell("exit 0");
  program.output = 999;
  EXPECT_EQ(RunProgram(program).status().message(), "sh: Bad file descriptor");
  ExpectNoChildren();
}

// Whoever started us may have ignored SIGCHLD.
TEST(RunProgramTest, AnEndThatIsntKnownIsNoSuccess) {
  signal(SIGCHLD, SIG_IGN);
  const auto end = RunProgram(Shell("exit 0"));
  signal(SIGCHLD, SIG_DFL);
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_FALSE(end->ok());
  EXPECT_FALSE(end->known());
  EXPECT_EQ(end->Text(), "how it ended isn't known");
}

TEST(RunProgramTest, ASignalInterruptsNothing) {
  struct sigaction action = {};
  action.sa_handler = [](int) {};
  ASSERT_EQ(sigaction(SIGALRM, &action, nullptr), 0);
  itimerval often = {{0, 20'000}, {0, 20'000}};
  setitimer(ITIMER_REAL, &often, nullptr);
  const auto end = RunProgram(Shell("sleep 0.3; exit 4"));
  often = {};
  setitimer(ITIMER_REAL, &often, nullptr);
  signal(SIGALRM, SIG_DFL);
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->code, 4);
}

TEST(RunProgramTest, ThreadsStartPrograms) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([i] {
      for (int run = 0; run < 10; ++run) {
        const auto end = RunProgram(Shell(absl::StrCat("exit ", i)));
        ASSERT_TRUE(end.ok()) << end.status();
        EXPECT_EQ(end->code, i);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(StartProgramTest, StandardDescriptors) {
  Pipe in;
  ASSERT_EQ(write(in.write_end(), "words", 5), 5);
  in.CloseWrite();
  Program program = Shell("cat; echo errors >&2");
  program.input = in.read_end();
  EXPECT_EQ(OutputOf(program), "wordserrors\n");
  program.input = Program::kNull;
  EXPECT_EQ(OutputOf(program), "errors\n");
}

// Each may be what another becomes; for one that is closed there is /dev/null.
TEST(StartProgramTest, StandardDescriptorsOfAnyNumber) {
  Pipe pipe;
  const pid_t child = Fork();
  if (child == 0) {
    close(0);
    dup2(pipe.write_end(), 1);
    close(2);
    Program program = Shell("readlink /proc/$$/fd/0 >&2");
    program.errors = 1;
    program.output = Program::kNull;
    const auto end = RunProgram(program);
    _exit(end.ok() && end->ok() ? 0 : 1);
  }
  pipe.CloseWrite();
  EXPECT_EQ(ReadAll(pipe.read_end()), "/dev/null\n");
  EXPECT_TRUE(WaitFor(child).ok());
}

TEST(StartProgramTest, Variables) {
  setenv("SUBPROCESS_A", "old", 1);
  setenv("SUBPROCESS_B", "old", 1);
  setenv("SUBPROCESS_C", "old", 1);
  Program program = Shell(
      "echo $SUBPROCESS_A ${SUBPROCESS_B-none} $SUBPROCESS_C $SUBPROCESS");
  program.variables = {"SUBPROCESS_A=new", "SUBPROCESS_B", "SUBPROCESS=x=y"};
  EXPECT_EQ(OutputOf(program), "new none old x=y\n");
  EXPECT_STREQ(getenv("SUBPROCESS_A"), "old");
}

TEST(StartProgramTest, OtherDescriptorsAreInheritedOnRequest) {
  const int leak = fcntl(STDERR_FILENO, F_DUPFD, 50);
  const int closed = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 60);
  Program program = Shell(absl::StrCat(
      "for fd in ", leak, " ", closed,
      "; do test -e /proc/$$/fd/$fd && echo open || echo closed; done"));
  EXPECT_EQ(OutputOf(program), "closed\nclosed\n");
  program.inherits_descriptors = true;
  EXPECT_EQ(OutputOf(program), "open\nclosed\n");
  close(leak);
  close(closed);
}

TEST(StartProgramTest, NoSignalIsBlocked) {
  sigset_t term;
  sigset_t before;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &term, &before);
  const auto end = RunProgram(Shell("kill -TERM $$; exit 0"));
  sigset_t after;
  pthread_sigmask(SIG_SETMASK, &before, &after);
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(end->signal, SIGTERM);
  EXPECT_EQ(sigismember(&after, SIGTERM), 1);
}

TEST(StartProgramTest, AGroupIsKilledAsAWhole) {
  Pipe held;
  Program program = Shell("sleep 1000 & sleep 1000");
  program.output = held.write_end();
  program.own_group = true;
  const auto child = StartProgram(program);
  ASSERT_TRUE(child.ok()) << child.status();
  held.CloseWrite();
  EXPECT_EQ(getpgid(*child), *child);
  ASSERT_EQ(kill(-*child, SIGKILL), 0);
  EXPECT_EQ(WaitFor(*child).signal, SIGKILL);
  EXPECT_TRUE(AllGone(held));
}

TEST(StartProgramTest, DiesWithItsParent) {
  Pipe held;
  const pid_t parent = Fork();
  if (parent == 0) {
    Program program;
    program.words = {"sleep", "1000"};
    program.output = held.write_end();
    program.dies_with_parent = true;
    _exit(StartProgram(program).ok() ? 0 : 1);
  }
  held.CloseWrite();
  EXPECT_TRUE(WaitFor(parent).ok());
  EXPECT_TRUE(AllGone(held));
}

TEST(WaitForTest, NoLongerThanTheLimit) {
  Program program;
  program.words = {"sleep", "1000"};
  const auto child = StartProgram(program);
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_FALSE(WaitFor(*child, 0).has_value());
  const double start = MonotonicSeconds();
  EXPECT_FALSE(WaitFor(*child, 0.1).has_value());
  EXPECT_GE(MonotonicSeconds() - start, 0.1);
  kill(*child, SIGKILL);
  const auto end = WaitFor(*child, kLongSeconds);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->signal, SIGKILL);
  ExpectNoChildren();
}

TEST(ForkTest, PrintsNothingTwice) {
  testing::internal::CaptureStdout();
  std::printf("once");
  const pid_t child = Fork();
  if (child == 0) {
    std::fflush(nullptr);
    _exit(0);
  }
  EXPECT_TRUE(WaitFor(child).ok());
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "once");
}

TEST(ForkTest, DiesWithItsParent) {
  Pipe held;
  const pid_t parent = Fork();
  if (parent == 0) {
    const pid_t child = Fork();
    if (child == 0) {
      for (;;) pause();
    }
    _exit(child > 0 ? 0 : 1);
  }
  held.CloseWrite();
  EXPECT_TRUE(WaitFor(parent).ok());
  EXPECT_TRUE(AllGone(held));
}

TEST(PipeTest, ClosesItsEnds) {
  int read_end = -1;
  int write_end = -1;
  {
    Pipe pipe;
    ASSERT_TRUE(pipe.ok());
    write_end = pipe.write_end();
    read_end = pipe.ReleaseRead();
    EXPECT_EQ(pipe.read_end(), -1);
  }
  EXPECT_EQ(fcntl(read_end, F_GETFD), FD_CLOEXEC);
  EXPECT_EQ(fcntl(write_end, F_GETFD), -1);
  close(read_end);
}

}  // namespace
}  // namespace capstan
