// SPDX-License-Identifier: Apache-2.0
//
// The emulator itself, which the kernels' tests rely on.
#include "testing/cuda/emulator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace capstan::kernels::cuda {
namespace {

TEST(EmulatorTest, RunsEveryThreadOfEveryBlockOnce) {
  std::vector<int> runs(3 * 64);
  emulator::Run(3, 64, 0, [&] {
    EXPECT_EQ(blockDim.x, 64);
    EXPECT_EQ(gridDim.x, 3);
    ++runs[blockIdx.x * blockDim.x + threadIdx.x];
  });
  EXPECT_EQ(runs, std::vector<int>(3 * 64, 1));
}

TEST(EmulatorTest, ShufflesWithinAWarp) {
  std::vector<double> sums(64);
  emulator::Run(1, 64, 0, [&] {
    double x = threadIdx.x;
    for (int step = 16; step > 0; step /= 2) {
      x += __shfl_xor_sync(~0u, x, step);
    }
    sums[threadIdx.x] = x;
  });
  for (int i = 0; i < 64; ++i) EXPECT_EQ(sums[i], i < 32 ? 496.0 : 1520.0);
}

// Each thread reads what the next one wrote, correct in both orders.
TEST(EmulatorTest, ABarrierShowsWhatOthersWrote) {
  for (const bool backwards : {false, true}) {
    emulator::RunBackwards(backwards);
    std::vector<float> got(96);
    emulator::Run(1, 96, 96 * sizeof(float), [&] {
      float* shared = emulator::SharedFloats();
      shared[threadIdx.x] = threadIdx.x;
      __syncthreads();
      got[threadIdx.x] = shared[(threadIdx.x + 1) % 96];
    });
    for (int i = 0; i < 96; ++i) EXPECT_EQ(got[i], (i + 1) % 96);
  }
  emulator::RunBackwards(false);
}

// Threads that end leave their stacks to others; what lies on them over a
// barrier stays.
TEST(EmulatorTest, ThreadsThatWaitKeepTheirStacks) {
  constexpr int kBlocks = 6, kThreads = 96;
  for (const bool backwards : {false, true}) {
    emulator::RunBackwards(backwards);
    std::vector<int> got(kBlocks * kThreads);
    emulator::Run(kBlocks, kThreads, 0, [&] {
      const int thread = blockIdx.x * kThreads + threadIdx.x;
      // Even blocks have no barrier; of odd ones all but a warp end after one.
      volatile int mine[64];
      for (int i = 0; i < 64; ++i) mine[i] = thread + i;
      if (blockIdx.x % 2 == 1) __syncthreads();
      if (blockIdx.x % 2 == 1 && threadIdx.x / 32 == 1) {
        __shfl_xor_sync(~0u, thread, 1);
      }
      bool kept = true;
      for (int i = 0; i < 64; ++i) kept = kept && mine[i] == thread + i;
      got[thread] = kept ? 1 : -1;
    });
    EXPECT_EQ(got, std::vector<int>(kBlocks * kThreads, 1));
  }
  emulator::RunBackwards(false);
}

TEST(EmulatorTest, AMissingBarrierShowsInOneOfTheOrders) {
  const auto run = [](bool backwards) {
    emulator::RunBackwards(backwards);
    std::vector<float> got(32);
    emulator::Run(1, 32, 32 * sizeof(float), [&] {
      float* shared = emulator::SharedFloats();
      shared[threadIdx.x] = threadIdx.x;
      got[threadIdx.x] = shared[31 - threadIdx.x];
    });
    emulator::RunBackwards(false);
    return got;
  };
  // Memory that nobody has written yet is NaN.
  EXPECT_TRUE(std::isnan(run(false)[0]));
  EXPECT_EQ(run(true)[0], 31.0f);
  EXPECT_TRUE(std::isnan(run(true)[31]));
}

TEST(EmulatorDeathTest, RefusesABarrierThatSomeThreadsMiss) {
  EXPECT_DEATH(emulator::Run(1, 64, 0,
                             [] {
                               if (threadIdx.x < 40) __syncthreads();
                             }),
               "some threads wait at a barrier");
}

}  // namespace
}  // namespace capstan::kernels::cuda
