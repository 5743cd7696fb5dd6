// SPDX-License-Identifier: Apache-2.0
#include "plugins/grpo/rewards/swept_folder.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/subprocess.h"

namespace capstan::grpo {
namespace {

TEST(SweptFolderTest, GoesWithItsObject) {
  absl::StatusOr<std::unique_ptr<SweptFolder>> folder = SweptFolder::Create();
  ASSERT_TRUE(folder.ok()) << folder.status();
  const std::string path = (*folder)->path();
  ASSERT_TRUE(WriteWholeFile(absl::StrCat(path, "/file"), "x").ok());
  folder->reset();
  EXPECT_NE(access(path.c_str(), F_OK), 0);
}

// With the signal that no process can act on, and one that ends it at once.
TEST(SweptFolderTest, GoesWithItsProcess) {
  // Children of a child that has ended become this process's.
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  for (const int signal : {SIGKILL, SIGTERM}) {
    Pipe told;
    ASSERT_TRUE(told.ok());
    const pid_t child = Fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const auto folder = SweptFolder::Create();
      if (!folder.ok()) _exit(1);
      const std::string& path = (*folder)->path();
      if (!WriteWholeFile(absl::StrCat(path, "/file"), "x").ok()) _exit(1);
      if (write(told.write_end(), path.data(), path.size()) < 0) _exit(1);
      for (;;) pause();
    }
    char path[4096] = {};
    ASSERT_GT(read(told.read_end(), path, sizeof(path) - 1), 0);
    ASSERT_EQ(access(path, F_OK), 0);
    kill(child, signal);
    EXPECT_EQ(WaitFor(child).signal, signal);
    while (wait(nullptr) > 0) {  // the shell
    }
    EXPECT_NE(access(path, F_OK), 0) << path;
  }
}

}  // namespace
}  // namespace capstan::grpo
