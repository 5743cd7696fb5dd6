// SPDX-License-Identifier: Apache-2.0
#include "base/sandbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/landlock.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/scratch_folder.h"
#include "base/subprocess.h"

namespace capstan {
namespace {

using ::testing::HasSubstr;

struct Ran {
  ChildEnd end;
  std::string output;
};

class SandboxTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(folder_.status().ok()) << folder_.status();
    sandbox_.folder = folder_.path();
  }

  // A Python program in the sandbox; what it prints.
  Ran Run(const std::string& source) {
    Ran ran;
    Pipe pipe;
    Program program;
    program.words = {"/usr/bin/python3", "-I", "-c", source};
    program.input = Program::kNull;
    program.output = program.errors = pipe.write_end();
    program.dies_with_parent = true;
    program.sandbox = sandbox_;
    const absl::StatusOr<pid_t> child = StartProgram(program);
    EXPECT_TRUE(child.ok()) << child.status();
    if (!child.ok()) return ran;
    pipe.CloseWrite();
    char buffer[4096];
    for (ssize_t size;
         (size = read(pipe.read_end(), buffer, sizeof(buffer))) > 0;) {
      ran.output.append(buffer, static_cast<size_t>(size));
    }
    ran.end = WaitFor(*child);
    return ran;
  }

  void ExpectDenied(const std::string& source) {
    const Ran ran = Run(source);
    EXPECT_EQ(ran.end.code, 1) << source;
    EXPECT_THAT(ran.output, HasSubstr("PermissionError")) << source;
  }

  ScratchFolder folder_;
  Sandbox sandbox_;
};

TEST_F(SandboxTest, ProgramsRunInTheirFolder) {
  const Ran ran =
      Run("import os, threading\n"
          "open('written', 'w').write('x')\n"
          "threads = [threading.Thread(target=print) for _ in range(3)]\n"
          "[t.start() for t in threads]; [t.join() for t in threads]\n"
          "os.remove('written'); open('/dev/null', 'w').write('x')\n"
          "print(os.getcwd(), os.getsid(0) == os.getpid())");
  EXPECT_EQ(ran.end.code, 0) << ran.output;
  EXPECT_EQ(ran.output, absl::StrCat("\n\n\n", folder_.path(), " True\n"));
}

TEST_F(SandboxTest, NoNetwork) {
  ExpectDenied("import socket; socket.socket()");
  ExpectDenied("import socket; socket.socket(socket.AF_UNIX)");
}

TEST_F(SandboxTest, NoOtherProcess) {
  ExpectDenied("import os; os.fork()");
  ExpectDenied("import subprocess; subprocess.run(['/bin/true'])");
  ExpectDenied("import os; os.posix_spawn('/bin/true', ['true'], {})");
}

TEST_F(SandboxTest, SignalsReachNobodyElse) {
  ExpectDenied("import os; os.kill(os.getppid(), 0)");
  ExpectDenied("import os; os.kill(-1, 9)");
  ExpectDenied(
      "import os, resource; resource.prlimit(os.getppid(), "
      "resource.RLIMIT_CPU, (1, 1))");
  EXPECT_EQ(Run("import os; os.kill(os.getpid(), 15)").end.signal, SIGTERM);
  // PR_SET_PDEATHSIG: it doesn't outlive its parent.
  EXPECT_EQ(Run("import ctypes; print(ctypes.CDLL(None).prctl(1, 0))").output,
            "-1\n");
}

TEST_F(SandboxTest, OthersFilesStayAsTheyAre) {
  const ScratchFolder others;
  const std::string file = absl::StrCat(others.path(), "/file");
  ASSERT_TRUE(WriteWholeFile(file, "kept").ok());
  ExpectDenied(absl::StrCat("import os; os.chmod('", file, "', 0)"));
  ExpectDenied(absl::StrCat("import os; os.utime('", file, "', (1, 1))"));
  // fchmodat2, which no C library here has yet: ENOSYS.
  EXPECT_EQ(Run(absl::StrCat("import ctypes\nc = ctypes.CDLL(None, "
                             "use_errno=True)\nc.syscall(452, -100, b'",
                             file, "', 0, 0); print(ctypes.get_errno())"))
                .output,
            "38\n");
  if (syscall(SYS_landlock_create_ruleset, nullptr, 0,
              LANDLOCK_CREATE_RULESET_VERSION) < 1) {
    GTEST_SKIP() << "this kernel has no Landlock";
  }
  ExpectDenied(absl::StrCat("open('", file, "', 'w')"));
  ExpectDenied(absl::StrCat("import os; os.remove('", file, "')"));
  ExpectDenied(absl::StrCat("import os; os.rename('", file, "', 'mine')"));
  ExpectDenied(absl::StrCat("import os; os.mkdir('", others.path(), "/new')"));
  EXPECT_EQ(ReadWholeFile(file).value(), "kept");
}

// Who isn't root couldn't remove it.
TEST_F(SandboxTest, NoFolderThatItsOwnerCantLookInto) {
  ExpectDenied("import os; os.mkdir('a', 0o300)");
  ExpectDenied("import os; os.mkdir('a', 0)");
  EXPECT_EQ(Run("import os\nos.umask(0)\nassert os.umask(0o77) == 0\n"
                "try: os.umask(0o777)\n"
                "except OSError: os.mkdir('b', 0o755); os.listdir('b')\n"
                "else: exit(1)")
                .end.code,
            0);
  EXPECT_EQ(
      Run("import os, tempfile; os.mkdir('c'); tempfile.mkdtemp()").end.code,
      0);
}

TEST_F(SandboxTest, NoMemoryThatNoLimitCounts) {
  ExpectDenied("import os; os.memfd_create('x')");
}

TEST_F(SandboxTest, Limits) {
  sandbox_.cpu_seconds = 1;
  EXPECT_EQ(Run("while True: pass").end.signal, SIGXCPU);
  EXPECT_EQ(Run("import signal; signal.signal(signal.SIGXCPU, "
                "signal.SIG_IGN)\nwhile True: pass")
                .end.signal,
            SIGKILL);
  sandbox_.bytes = int64_t{1} << 30;
  EXPECT_THAT(Run("bytearray(2 << 30)").output, HasSubstr("MemoryError"));
  sandbox_.file_bytes = 1 << 16;
  EXPECT_THAT(Run("open('f', 'wb').write(bytes(1 << 17))").output,
              HasSubstr("File too large"));
  EXPECT_THAT(Run("all = [open('/dev/null') for _ in range(100)]").output,
              HasSubstr("Too many open files"));
}

TEST_F(SandboxTest, WhatCantEnterDoesntStart) {
  Program program;
  program.words = {"true"};
  program.sandbox = sandbox_;
  program.sandbox->folder = absl::StrCat(folder_.path(), "/none");
  EXPECT_EQ(StartProgram(program).status().message(),
            "true: No such file or directory");
}

}  // namespace
}  // namespace capstan
