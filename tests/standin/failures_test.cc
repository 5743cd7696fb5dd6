// SPDX-License-Identifier: Apache-2.0
//
// A call of the device that fails, wherever it is, ends the run with an error
// or is overcome: the run never hangs. TEST_RANDOM_SEED, which
// `bazel test --runs_per_test` counts up, picks other calls.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <random>
#include <string>

#include "tests/standin/standin_run.h"

namespace capstan {
namespace {

// A number in [1, most], another for each seed and use.
int Pick(int most, int use) {
  const char* const seed = std::getenv("TEST_RANDOM_SEED");
  std::seed_seq sequence = {seed == nullptr ? 1 : std::atoi(seed), use};
  std::mt19937 random(sequence);
  return 1 + static_cast<int>(random() % most);
}

void ExpectEnds(int gpus, const std::string& strategy,
                const std::string& fault) {
  SCOPED_TRACE(fault);
  const StandinRun run = RunOn(
      gpus, ShortRun(gpus, {"strategy=capstan." + strategy}), "fault=" + fault);
  EXPECT_FALSE(run.result.timed_out) << run.result.err;
  EXPECT_EQ(run.result.term_signal, 0) << run.result.err;
  EXPECT_TRUE(run.result.all_gone);
  if (run.result.exit_code == 0) {
    EXPECT_EQ(run.metrics.steps.size(), 2);
  } else {
    EXPECT_NE(run.result.err.find("ERROR"), std::string::npos)
        << run.result.err;
  }
}

TEST(StandinFailuresTest, OutOfMemory) {
  for (int use = 0; use < 3; ++use) {
    ExpectEnds(1, "single", "malloc:" + std::to_string(Pick(20, use)));
  }
  ExpectEnds(2, "fsdp", "malloc:" + std::to_string(Pick(20, 3)));
}

// A single allocation that fails is overcome: the allocator frees what it keeps
// and asks again. A GPU that is too small isn't.
TEST(StandinFailuresTest, ASmallGpuIsOutOfMemory) {
  const StandinRun run =
      RunOn(1, ShortRun(1, {"strategy=capstan.single"}), "memory=16M");
  EXPECT_EQ(run.result.exit_code, 1) << run.result.err;
  EXPECT_NE(run.result.err.find("out of memory"), std::string::npos)
      << run.result.err;
}

TEST(StandinFailuresTest, AFailedLaunchIsTold) {
  const StandinRun run =
      RunOn(1, ShortRun(1, {"strategy=capstan.single"}), "fault=launch:700");
  EXPECT_EQ(run.result.exit_code, 1) << run.result.err;
  EXPECT_NE(run.result.err.find("unspecified launch failure"),
            std::string::npos)
      << run.result.err;
  EXPECT_EQ(run.result.err.find("SIGABRT"), std::string::npos)
      << run.result.err;
}

TEST(StandinFailuresTest, Launches) {
  for (int use = 0; use < 3; ++use) {
    ExpectEnds(1, "single", "launch:" + std::to_string(Pick(2000, use)));
  }
}

// Its rank and the others, whose collectives are aborted, say so at once.
TEST(StandinFailuresTest, Collectives) {
  const std::string fault = "collective:" + std::to_string(Pick(12, 0));
  SCOPED_TRACE(fault);
  const auto before = std::chrono::steady_clock::now();
  const StandinRun run =
      RunOn(2, ShortRun(2, {"strategy=capstan.ddp"}), "fault=" + fault);
  // LibTorch by itself waits a minute.
  EXPECT_LT(std::chrono::steady_clock::now() - before,
            std::chrono::seconds(45));
  EXPECT_EQ(run.result.exit_code, 1) << run.result.err;
  EXPECT_NE(run.result.err.find("ERROR"), std::string::npos) << run.result.err;
  EXPECT_EQ(run.result.err.find("SIGABRT"), std::string::npos)
      << run.result.err;
  EXPECT_TRUE(run.result.all_gone);
}

}  // namespace
}  // namespace capstan
