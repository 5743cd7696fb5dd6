// SPDX-License-Identifier: Apache-2.0
#include "plugins/grpo/rewards/sandbox_watch.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <string>

#include "base/sandbox.h"
#include "base/scratch_folder.h"
#include "base/subprocess.h"

namespace capstan::grpo {
namespace {

// How a Python program ends, in a folder of its own. It is stopped only if it
// is noticed.
ChildEnd EndOf(const std::string& source, const WatchedLimits& limits) {
  const ScratchFolder folder;
  EXPECT_TRUE(folder.status().ok()) << folder.status();
  ::capstan::Program program;
  program.words = {"/usr/bin/python3", "-I", "-c", source};
  program.input = program.output = ::capstan::Program::kNull;
  program.dies_with_parent = true;
  program.sandbox.emplace();
  program.sandbox->folder = folder.path();
  const absl::StatusOr<pid_t> child = StartProgram(program);
  EXPECT_TRUE(child.ok()) << child.status();
  if (!child.ok()) return {};
  return WatchSandbox(*child, folder.path(), limits);
}

constexpr char kForever[] = "\nimport signal\nsignal.pause()";

WatchedLimits Small() {
  WatchedLimits limits;
  limits.seconds = 1e6;
  limits.folder_bytes = 1 << 20;
  limits.folder_files = 20;
  limits.threads = 8;
  return limits;
}

TEST(SandboxWatchTest, WhatTakesNoMoreEndsByItself) {
  EXPECT_EQ(EndOf("import os, threading, time\n"
                  "for i in range(5):\n"
                  "  os.makedirs(f'{i}/a')\n"
                  "  open(f'{i}/f', 'wb').write(bytes(180000))\n"
                  "all = [threading.Thread(target=time.sleep, args=(.05,))\n"
                  "       for _ in range(7)]\n"
                  "for t in all: t.start()\n"
                  "for t in all: t.join()\n"
                  "exit(7)",
                  Small())
                .code,
            7);
}

TEST(SandboxWatchTest, FilesTogether) {
  for (const char* const source :
       {"for i in range(11): open(str(i), 'wb').write(bytes(100000))",
        "import os\nfor i in range(21): os.mkdir(str(i))",
        "import os\n"
        "for i in range(11):\n"
        "  os.mkdir(str(i)); open(f'{i}/f', 'wb').write(bytes(100000))"}) {
    EXPECT_EQ(EndOf(std::string(source) + kForever, Small()).signal, SIGKILL)
        << source;
  }
  WatchedLimits many = Small();
  many.folder_files = 1 << 20;
  // Deeper than any program needs.
  EXPECT_EQ(EndOf(std::string("import os\n"
                              "for _ in range(100):\n"
                              "  os.mkdir('d'); os.chdir('d')") +
                      kForever,
                  many)
                .signal,
            SIGKILL);
}

TEST(SandboxWatchTest, Threads) {
  EXPECT_EQ(EndOf(std::string("import threading, time\n"
                              "for _ in range(8):\n"
                              "  threading.Thread(target=time.sleep,\n"
                              "                   args=(1000,)).start()") +
                      kForever,
                  Small())
                .signal,
            SIGKILL);
}

TEST(SandboxWatchTest, Time) {
  WatchedLimits limits;
  limits.seconds = 0.05;
  EXPECT_EQ(EndOf(kForever, limits).signal, SIGKILL);
}

}  // namespace
}  // namespace capstan::grpo
