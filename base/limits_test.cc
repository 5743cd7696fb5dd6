// SPDX-License-Identifier: Apache-2.0
#include "base/limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/shared_memory.h"

namespace capstan {
namespace {

using ::testing::ExitedWithCode;
using ::testing::HasSubstr;

void Limit(int what, rlim_t soft, rlim_t hard) {
  const rlimit limit = {soft, hard};
  ASSERT_EQ(setrlimit(static_cast<__rlimit_resource>(what), &limit), 0);
}

// In a child, whose limits are lower: writes the status and exits.
[[noreturn]] void Tell(const absl::Status& status) {
  fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  _exit(status.ok() ? 0 : 3);
}

TEST(LimitsDeathTest, AFileThatGrowsTooLargeIsAnErrorOfItsWriter) {
  const std::string path = ::testing::TempDir() + "/large";
  EXPECT_EXIT(
      {
        MeetLimits();
        Limit(RLIMIT_FSIZE, 4096, 8192);
        Tell(ReplaceFile(path, std::string(5000, 'x')));
      },
      ExitedWithCode(3),
      "large can't be written: File too large; the limit of a file is 4096 "
      "bytes \\(ulimit -f\\)");
  EXPECT_FALSE(PathExists(path));
  // Memory that processes share is a file, too.
  EXPECT_EXIT(
      {
        MeetLimits();
        Limit(RLIMIT_FSIZE, 4096, 8192);
        if (ftruncate(memfd_create("limits", 0), 1 << 20) == 0) _exit(0);
        Tell(SharedMemoryError("ftruncate"));
      },
      ExitedWithCode(3), "the limit of a file is 4096 bytes");
}

TEST(LimitsDeathTest, TheEndOfTheCpuTimeIsToldBeforeTheKill) {
  EXPECT_EXIT(
      {
        Limit(RLIMIT_CPU, 2, 2);
        MeetLimits();
        volatile uint64_t count = 0;
        while (true) count = count + 1;
      },
      ExitedWithCode(1),
      "ERROR: the 2 s of CPU time that a process may take \\(ulimit -t\\) are "
      "used up");
}

TEST(LimitsTest, OnlyErrorsThatALimitExplainsNameIt) {
  EXPECT_EQ(LimitText(EACCES), "");
  EXPECT_EQ(LimitText(0), "");
  EXPECT_THAT(LimitText(EMFILE), HasSubstr("(ulimit -n)"));
}

TEST(LimitsTest, MoreThreadsThanCoresCanUseAreRefused) {
  const char* const before = std::getenv("OMP_NUM_THREADS");
  const std::string kept = before == nullptr ? "" : before;
  for (const char* few : {"1", "8", "all"}) {
    ASSERT_EQ(setenv("OMP_NUM_THREADS", few, 1), 0);
    EXPECT_TRUE(CheckThreads().ok()) << few;
  }
  for (const char* many : {"100000", "99999999999"}) {
    ASSERT_EQ(setenv("OMP_NUM_THREADS", many, 1), 0);
    EXPECT_THAT(
        std::string(CheckThreads().message()),
        HasSubstr(absl::StrCat("OMP_NUM_THREADS is ", many, ", and this ")));
  }
  if (before == nullptr) {
    unsetenv("OMP_NUM_THREADS");
  } else {
    setenv("OMP_NUM_THREADS", kept.c_str(), 1);
  }
}

}  // namespace
}  // namespace capstan
