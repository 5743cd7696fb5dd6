// SPDX-License-Identifier: Apache-2.0
#include "testing/standin/kernels/launches.h"

#include <gtest/gtest.h>

#include <vector>

namespace capstan::standin {

// Stands in for the device's: memory lies 64 bytes further for works.
void* HostView(const void* p) {
  return const_cast<char*>(static_cast<const char*>(p)) + 64;
}

namespace {

using kernels::cuda::DType;

TEST(LaunchesTest, TranslatesPointersAndCountsBytes) {
  std::vector<char> memory(4096);
  kernels::cuda::RmsNormArgs args = {};
  args.dtype = DType::kBFloat16;
  args.x = memory.data();
  args.weight = memory.data() + 1024;
  args.y = memory.data() + 2048;
  args.rstd = reinterpret_cast<float*>(memory.data() + 3072);
  args.rows = 4;
  args.n = 8;
  Work work;
  Launch(&work).Describe(args);
  EXPECT_EQ(args.x, memory.data() + 64);
  EXPECT_EQ(args.y, memory.data() + 2048 + 64);
  ASSERT_EQ(work.reads.size(), 2);
  EXPECT_EQ(work.reads[0].begin, memory.data());
  EXPECT_EQ(work.reads[0].bytes, 64);
  ASSERT_EQ(work.writes.size(), 2);
  EXPECT_EQ(work.writes[1].bytes, 16);
  EXPECT_EQ(work.cost.bytes_read, 64 + 16);
  EXPECT_EQ(work.cost.bytes_written, 64 + 16);
  EXPECT_EQ(work.cost.launches, 1);
}

// Heads that are columns of wider rows: the span is that of the rows, what is
// read is that of the heads.
TEST(LaunchesTest, RowsInGroups) {
  std::vector<char> memory(8192);
  kernels::cuda::RmsNormArgs args = {};
  args.dtype = DType::kBFloat16;
  args.x = memory.data();
  args.y = memory.data() + 4096;
  args.rows = 12;
  args.n = 8;
  args.heads = 3;
  args.x_stride = 100;
  Work work;
  Launch(&work).Describe(args);
  ASSERT_EQ(work.reads.size(), 1);
  EXPECT_EQ(work.reads[0].bytes, (3 * 100 + 24) * 2);
  EXPECT_EQ(work.cost.bytes_read, 12 * 8 * 2);
  EXPECT_EQ(work.cost.bytes_written, 12 * 8 * 2);
}

// One pass, whatever the state's dtype.
TEST(LaunchesTest, AdamWMovesFewBytesAnElement) {
  constexpr int64_t kElements = 1024;
  char memory = 0;
  const auto moved = [](auto args) {
    args.gradient_dtype = args.working_dtype = DType::kBFloat16;
    args.n = kElements;
    Work work;
    Launch(&work).Describe(args);
    EXPECT_EQ(work.cost.launches, 1);
    return static_cast<double>(work.cost.bytes_read + work.cost.bytes_written) /
           kElements;
  };
  kernels::cuda::AdamWArgs args = {};
  args.state_dtype = DType::kBFloat16;
  args.gradient = args.exp_avg = args.exp_avg_sq = args.working = &memory;
  args.parameter = reinterpret_cast<float*>(&memory);
  EXPECT_EQ(moved(args), 20.0);
  kernels::cuda::AdamW8BitArgs bytes = {};
  bytes.gradient = bytes.working = &memory;
  bytes.exp_avg = bytes.exp_avg_sq = reinterpret_cast<uint8_t*>(&memory);
  bytes.parameter = bytes.exp_avg_absmax = bytes.exp_avg_sq_absmax =
      reinterpret_cast<float*>(&memory);
  EXPECT_EQ(moved(bytes), 16.0 + 16.0 / 256);
}

TEST(LaunchesTest, NullPointersStayNullAndNothingIsNoLaunch) {
  kernels::cuda::AdamWArgs args = {};
  args.gradient_dtype = DType::kFloat32;
  Work work;
  Launch(&work).Describe(args);
  EXPECT_EQ(args.working, nullptr);
  EXPECT_EQ(args.device_scale, nullptr);
  EXPECT_EQ(work.cost.launches, 0);
  EXPECT_TRUE(work.writes.empty());
}

}  // namespace
}  // namespace capstan::standin
