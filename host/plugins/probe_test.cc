// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "host/plugins/plugin_host.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kSeconds = 30.0;

std::string Words(const absl::Status& status) {
  return std::string(status.message());
}

TEST(ProbeTest, WhatReturnsIsWellAndLeavesNothingHere) {
  int value = 0;
  testing::internal::CaptureStdout();
  EXPECT_TRUE(Probe(
                  [&] {
                    value = 1;
                    std::printf("not for the user\n");
                    std::fflush(stdout);
                  },
                  kSeconds)
                  .ok());
  EXPECT_EQ(value, 0);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
}

TEST(ProbeTest, ASignalIsNamedWithTheLastWords) {
  std::string output;
  const absl::Status status = Probe(
      [] {
        std::fprintf(stderr, "no license\nfound\n");
        raise(SIGSEGV);
      },
      kSeconds, &output);
  EXPECT_THAT(Words(status),
              AllOf(HasSubstr("crashed: signal 11"), HasSubstr("fault"),
                    HasSubstr("it printed: no license found")));
  EXPECT_EQ(output, "no license\nfound\n");
}

TEST(ProbeTest, ExitIsNamedWithItsCode) {
  // Includes what was still buffered.
  EXPECT_THAT(Words(Probe(
                  [] {
                    std::printf("goodbye");
                    std::exit(3);
                  },
                  kSeconds)),
              AllOf(HasSubstr("ended the process, with exit code 3"),
                    HasSubstr("goodbye")));
  EXPECT_THAT(Words(Probe([] { _exit(0); }, kSeconds)),
              AllOf(HasSubstr("exit code 0"), Not(HasSubstr("printed"))));
}

TEST(ProbeTest, TheParentsExitHandlersDoNotRunInTheChild) {
  static bool in_child = false;
  std::atexit([] {
    if (in_child) std::fprintf(stderr, "the parent's handler\n");
  });
  EXPECT_THAT(Words(Probe(
                  [] {
                    in_child = true;
                    std::exit(1);
                  },
                  kSeconds)),
              Not(HasSubstr("handler")));
}

TEST(ProbeTest, MuchOutputBlocksNothing) {
  std::string output;
  EXPECT_TRUE(Probe(
                  [] {
                    const std::string line(1000, 'x');
                    for (int i = 0; i < 1000; ++i) std::puts(line.c_str());
                    std::fflush(stdout);
                  },
                  kSeconds, &output)
                  .ok());
  EXPECT_GT(output.size(), 10000);
  EXPECT_LT(output.size(), 100000);
}

TEST(ProbeTest, WhatHangsIsEnded) {
  const auto start = std::chrono::steady_clock::now();
  const absl::Status status = Probe([] { pause(); }, 0.2);
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(Words(status), HasSubstr("did not end within 0.2 s"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST(ProbeTest, WhatIsSlowIsSaidOnce) {
  int said = 0;
  const auto slow = [&said] { ++said; };
  EXPECT_TRUE(Probe([] {}, kSeconds, nullptr, slow).ok());
  EXPECT_EQ(said, 0);
  EXPECT_TRUE(Probe([] { sleep(3); }, kSeconds, nullptr, slow).ok());
  EXPECT_EQ(said, 1);
}

}  // namespace
}  // namespace capstan
