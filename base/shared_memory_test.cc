// SPDX-License-Identifier: Apache-2.0
#include "base/shared_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace capstan {
namespace {

TEST(SharedMemoryTest, OpensWhatTheAddressSays) {
  const int fd = memfd_create("test", MFD_CLOEXEC);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(pwrite(fd, "memory", 6, 0), 6);
  const uint64_t nonce = NewMemoryNonce();
  EXPECT_NE(nonce, NewMemoryNonce());
  const auto memory = OpenSharedMemory(SharedMemoryAddress(fd, nonce));
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(memory->nonce, nonce);
  char text[6] = {};
  EXPECT_EQ(pread(memory->fd, text, 6, 0), 6);
  EXPECT_EQ(std::string(text, 6), "memory");
  close(memory->fd);
  close(fd);
  const auto closed = OpenSharedMemory(SharedMemoryAddress(fd, nonce));
  EXPECT_TRUE(absl::IsResourceExhausted(closed.status()));
  EXPECT_THAT(std::string(closed.status().message()),
              testing::HasSubstr(absl::StrCat("/proc/", getpid(), "/fd/", fd)));
}

TEST(SharedMemoryTest, OtherTextsAreNoAddresses) {
  for (const char* text : {"", "1", "1 2", "1 2 3 4", "a 2 3", "1 b 3", "1 2 c",
                           "1 2 99999999999999999999", "../1 2 3"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(OpenSharedMemory(text).status()))
        << text;
  }
}

}  // namespace
}  // namespace capstan
