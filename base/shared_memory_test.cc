// SPDX-License-Identifier: Apache-2.0
#include "base/shared_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"

namespace capstan {
namespace {

TEST(SharedMemoryTest, OpensWhatTheAddressSays) {
  const auto memory = SharedMemory::Create(6);
  ASSERT_TRUE(memory.ok()) << memory.status();
  memcpy((*memory)->data(), "memory", 6);
  const std::string address = (*memory)->address();
  const auto opened = SharedMemory::Open(address, 6);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(std::string((*opened)->data(), 6), "memory");
  (*opened)->data()[0] = 'M';
  EXPECT_EQ((*memory)->data()[0], 'M');
  EXPECT_NE((*SharedMemory::Create(6))->address(), address);
  (*memory)->CloseFile();
  const auto closed = SharedMemory::Open(address, 6);
  EXPECT_TRUE(absl::IsResourceExhausted(closed.status())) << closed.status();
  EXPECT_THAT(std::string(closed.status().message()),
              testing::HasSubstr(absl::StrCat("/proc/", getpid(), "/fd/")));
  // Both ends keep it.
  EXPECT_EQ(std::string((*memory)->data(), 6), "Memory");
}

TEST(SharedMemoryTest, OtherMemoryIsNotOpened) {
  const auto memory = SharedMemory::Create(100);
  ASSERT_TRUE(memory.ok()) << memory.status();
  const std::string address = (*memory)->address();
  EXPECT_TRUE(absl::IsNotFound(SharedMemory::Open(address, 101).status()));
  // Another nonce.
  EXPECT_TRUE(absl::IsNotFound(
      SharedMemory::Open(
          absl::StrCat(address.substr(0, address.rfind(' ')), " 1"), 100)
          .status()));
  // A file that isn't ours.
  const int fd = memfd_create("test", MFD_CLOEXEC);
  ASSERT_GE(fd, 0);
  EXPECT_TRUE(absl::IsNotFound(
      SharedMemory::Open(absl::StrCat(getpid(), " ", fd, " 0"), 100).status()));
  close(fd);
}

TEST(SharedMemoryTest, NeedsNoFileIfNobodyOpensIt) {
  const auto memory = SharedMemory::Create(10000, /*opens=*/false);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ((*memory)->address(), "");
  EXPECT_EQ((*memory)->data()[9999], 0);
}

TEST(SharedMemoryTest, OtherTextsAreNoAddresses) {
  for (const char* text : {"", "1", "1 2", "1 2 3 4", "a 2 3", "1 b 3", "1 2 c",
                           "1 2 99999999999999999999", "../1 2 3"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(SharedMemory::Open(text, 1).status()))
        << text;
  }
}

}  // namespace
}  // namespace capstan
