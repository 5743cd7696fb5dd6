// SPDX-License-Identifier: Apache-2.0
#include "base/confined_child.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <functional>
#include <stdexcept>
#include <string>

namespace capstan {
namespace {

using Parent = ConfinedChild::Parent;

// What the parent hears of a child that ends in `serve` before it answers.
std::string EndOf(const std::function<void(const Parent&)>& serve,
                  const ChildLimits& limits = {}) {
  auto child = ConfinedChild::Start(limits, serve);
  if (!child.ok()) return child.status().ToString();
  const absl::Status status = (*child)->Receive(1).status();
  EXPECT_TRUE((*child)->ended()) << status;
  EXPECT_FALSE((*child)->Send("a").ok()) << "and it stays ended";
  return std::string(status.message());
}

TEST(ConfinedChildTest, Answers) {
  auto child = ConfinedChild::Start({}, [](const Parent& parent) {
    std::string bytes(1 << 20, '\0');
    if (!parent.Receive(&bytes[0], bytes.size())) return;
    for (char& byte : bytes) ++byte;
    parent.Send(absl::string_view(bytes));
    parent.Send(absl::NotFoundError("no more"));
    throw std::runtime_error("thrown");
  });
  ASSERT_TRUE(child.ok()) << child.status();
  ASSERT_TRUE((*child)->Send(std::string(1 << 20, 'a')).ok());
  const auto answer = (*child)->Receive(1 << 20);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(*answer, std::string(1 << 20, 'b'));
  EXPECT_EQ((*child)->Receive(1).status(), absl::NotFoundError("no more"));
  EXPECT_EQ((*child)->Receive(1).status(), absl::InternalError("thrown"));
  EXPECT_FALSE((*child)->ended());
}

TEST(ConfinedChildTest, AnAnswerHasALimit) {
  EXPECT_EQ(EndOf([](const Parent& parent) {
              parent.Send(absl::string_view("too long"));
            }),
            "sends more than it may");
}

TEST(ConfinedChildTest, ACrashIsAnError) {
  EXPECT_EQ(EndOf([](const Parent&) { raise(SIGSEGV); }),
            "crashed (Segmentation fault)");
  EXPECT_EQ(EndOf([](const Parent&) { abort(); }), "crashed (Aborted)");
  EXPECT_EQ(EndOf([](const Parent&) { _exit(3); }),
            "has ended with exit code 3");
}

TEST(ConfinedChildTest, ALoopIsAnError) {
  ChildLimits limits;
  limits.cpu_seconds = 1;
  EXPECT_EQ(EndOf(
                [](const Parent&) {
                  for (volatile int i = 0;; i = i + 1) {
                  }
                },
                limits),
            "takes too long");
}

TEST(ConfinedChildTest, MemoryHasALimit) {
  ChildLimits limits;
  limits.bytes = 64 << 20;
  EXPECT_EQ(EndOf(
                [](const Parent&) {
                  void* const memory =
                      mmap(nullptr, 128 << 20, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                  _exit(memory == MAP_FAILED ? 4 : 5);
                },
                limits),
            "has ended with exit code 4");
}

TEST(ConfinedChildTest, HasNoOtherFileOfTheParents) {
  const int file = open("/dev/null", O_RDONLY);
  ASSERT_GE(file, 0);
  EXPECT_EQ(
      EndOf([file](const Parent&) { _exit(fcntl(file, F_GETFD) < 0 ? 4 : 5); }),
      "has ended with exit code 4");
  close(file);
}

TEST(ConfinedChildTest, ASignalToTheGroupIsNotItsEnd) {
  EXPECT_EQ(EndOf([](const Parent&) {
              raise(SIGINT);
              raise(SIGTERM);
              _exit(4);
            }),
            "has ended with exit code 4");
}

}  // namespace
}  // namespace capstan
