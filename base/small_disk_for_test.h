// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_BASE_SMALL_DISK_FOR_TEST_H_
#define CAPSTAN_BASE_SMALL_DISK_FOR_TEST_H_

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <string>

namespace capstan {

// Expects that `check` returns true in a child process that alone sees `folder`
// as an empty file system of `size` ("64k"). Skips the test, which must do
// nothing more, where nothing may be mounted.
inline void ExpectOnSmallDisk(const std::string& folder,
                              const std::string& size,
                              const std::function<bool()>& check) {
  constexpr int kNotMounted = 2;
  const auto mounts = [&] {
    const std::string user = "0 " + std::to_string(getuid()) + " 1";
    const std::string group = "0 " + std::to_string(getgid()) + " 1";
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
    std::ofstream("/proc/self/setgroups") << "deny";
    std::ofstream("/proc/self/uid_map") << user;
    std::ofstream("/proc/self/gid_map") << group;
    return mount("none", folder.c_str(), "tmpfs", 0,
                 ("size=" + size).c_str()) == 0;
  };
  const pid_t child = fork();
  if (child == 0) _exit(!mounts() ? kNotMounted : check() ? 0 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNotMounted) {
    GTEST_SKIP() << "mounting a small file system isn't allowed here";
  }
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace capstan

#endif  // CAPSTAN_BASE_SMALL_DISK_FOR_TEST_H_
