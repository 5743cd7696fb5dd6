// SPDX-License-Identifier: Apache-2.0
#include "plugins/algorithm_distillation/darkroom/reader_child.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

namespace capstan::darkroom {
namespace {

using testing::HasSubstr;

// What the parent hears of a child that ends in `serve` before it answers.
std::string EndOf(const std::function<void(int)>& serve,
                  const ChildLimits& limits = {}) {
  auto child = ReaderChild::Start(limits, serve);
  if (!child.ok()) return child.status().ToString();
  char answer = 0;
  const absl::Status status = (*child)->Receive(&answer, 1);
  EXPECT_FALSE((*child)->Send(&answer, 1).ok()) << "and it stays ended";
  return std::string(status.message());
}

TEST(ReaderChildTest, Answers) {
  auto child = ReaderChild::Start({}, [](int fd) {
    std::string bytes(1 << 20, '\0');
    if (!ReceiveAll(fd, &bytes[0], bytes.size())) return;
    for (char& byte : bytes) ++byte;
    SendAll(fd, bytes.data(), bytes.size());
  });
  ASSERT_TRUE(child.ok()) << child.status();
  std::string bytes(1 << 20, 'a');
  ASSERT_TRUE((*child)->Send(bytes.data(), bytes.size()).ok());
  ASSERT_TRUE((*child)->Receive(&bytes[0], bytes.size()).ok());
  EXPECT_EQ(bytes, std::string(1 << 20, 'b'));
}

TEST(ReaderChildTest, ACrashIsAnError) {
  EXPECT_EQ(EndOf([](int) { raise(SIGSEGV); }), "crashed (Segmentation fault)");
  EXPECT_EQ(EndOf([](int) { abort(); }), "crashed (Aborted)");
  EXPECT_EQ(EndOf([](int) { _exit(3); }), "has ended with exit code 3");
}

TEST(ReaderChildTest, ALoopIsAnError) {
  ChildLimits limits;
  limits.cpu_seconds = 1;
  EXPECT_EQ(EndOf(
                [](int) {
                  for (volatile int i = 0;; i = i + 1) {
                  }
                },
                limits),
            "takes too long");
}

TEST(ReaderChildTest, MemoryHasALimit) {
  ChildLimits limits;
  limits.bytes = 64 << 20;
  EXPECT_EQ(EndOf(
                [](int) {
                  void* const memory =
                      mmap(nullptr, 128 << 20, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                  _exit(memory == MAP_FAILED ? 4 : 5);
                },
                limits),
            "has ended with exit code 4");
}

TEST(ReaderChildTest, HasNoOtherFileOfTheParents) {
  const int file = open("/dev/null", O_RDONLY);
  ASSERT_GE(file, 0);
  EXPECT_EQ(EndOf([file](int) { _exit(fcntl(file, F_GETFD) < 0 ? 4 : 5); }),
            "has ended with exit code 4");
  close(file);
}

TEST(ReaderChildTest, ASignalToTheGroupIsNotItsEnd) {
  EXPECT_EQ(EndOf([](int) {
              raise(SIGINT);
              raise(SIGTERM);
              _exit(4);
            }),
            "has ended with exit code 4");
}

}  // namespace
}  // namespace capstan::darkroom
