// SPDX-License-Identifier: Apache-2.0
//
// The interpreter finds the mistakes of planted.cu, and passes their twins.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "testing/ptx/interpreter.h"
#include "testing/ptx/report.h"

namespace capstan::ptx {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kModule[] = "testing/ptx/planted.ptx";

std::string Contents(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// A float array that kernels may access.
class Buffer {
 public:
  explicit Buffer(int n) : values_(n) {
    std::iota(values_.begin(), values_.end(), 1.0f);
    Allocations::Global().Add(values_.data(), n * sizeof(float));
  }
  ~Buffer() { Allocations::Global().Remove(values_.data()); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  float* data() { return values_.data(); }
  float operator[](int i) const { return values_[i]; }

 private:
  std::vector<float> values_;
};

// As in planted.cu.
struct Args {
  const float* in;
  float* out;
  int n;
};

class PlantedTest : public ::testing::Test {
 protected:
  PlantedTest() {
    const absl::Status status = interpreter_.Load(kModule, Contents(kModule));
    EXPECT_TRUE(status.ok()) << status;
  }

  absl::Status Run(const std::string& kernel, const Args& args, Dim3 block,
                   Dim3 grid = {}, int64_t dynamic_bytes = 0) {
    const void* const arguments[] = {&args};
    return interpreter_.Launch(kernel, grid, block, dynamic_bytes, arguments);
  }
  // The error, as text that googletest prints.
  std::string Message(const std::string& kernel, const Args& args, Dim3 block,
                      Dim3 grid = {}, int64_t dynamic_bytes = 0) {
    return std::string(Run(kernel, args, block, grid, dynamic_bytes).message());
  }
  Totals TotalsOfKernel(const std::string& kernel) {
    return TotalsOf(interpreter_.Programs().at(kernel));
  }

  Interpreter interpreter_;
};

// In both orders: the error doesn't depend on luck.
TEST_F(PlantedTest, MissingBarrierIsARace) {
  Buffer in(64), out(64);
  const Args args = {in.data(), out.data(), 64};
  for (const bool backwards : {false, true}) {
    interpreter_.RunBackwards(backwards);
    EXPECT_THAT(
        Message("MissingBarrier", args, {64}),
        AllOf(HasSubstr("kernel MissingBarrier, block (0, 0, 0), thread ("),
              HasSubstr(" of planted.ptx:"), HasSubstr(", planted.cu:"),
              HasSubstr(": races with thread "),
              HasSubstr("no barrier lies between"),
              HasSubstr(" of the shared variable tile)")));
    EXPECT_EQ(Run("WithBarrier", args, {64}), absl::OkStatus());
    for (int i = 0; i < 64; ++i) EXPECT_EQ(out[i], in[63 - i]);
  }
}

TEST_F(PlantedTest, MissingBarrierBeforeAWriteIsARace) {
  Buffer in(128), out(128);
  const Args args = {in.data(), out.data(), 128};
  EXPECT_THAT(Message("MissingSecondBarrier", args, {64}),
              AllOf(HasSubstr(".shared.f32 of planted.ptx:"),
                    HasSubstr(": races with thread "),
                    HasSubstr("no barrier lies between")));
  EXPECT_EQ(Run("WithSecondBarrier", args, {64}), absl::OkStatus());
  EXPECT_EQ(out[127], in[64]);
}

TEST_F(PlantedTest, MisalignedVectors) {
  Buffer in(65), out(64);
  EXPECT_THAT(Message("CopyVectors", {in.data() + 1, out.data(), 64}, {16}),
              AllOf(HasSubstr("ld.global.v4."), HasSubstr("16 bytes at 0x"),
                    HasSubstr("isn't aligned")));
  EXPECT_EQ(Run("CopyVectors", {in.data(), out.data(), 64}, {16}),
            absl::OkStatus());
  EXPECT_EQ(out[63], in[63]);
}

TEST_F(PlantedTest, ReadBeyondTheRow) {
  Buffer in(40), out(40);
  const Args args = {in.data(), out.data(), 40};
  EXPECT_THAT(
      Message("BeyondTheRow", args, {64}),
      AllOf(HasSubstr("thread (39, 0, 0), ld.global.f32"),
            HasSubstr("is at byte 160 of an allocation of 160 bytes, the "
                      "nearest")));
  EXPECT_EQ(Run("WithinTheRow", args, {64}), absl::OkStatus());
  EXPECT_EQ(out[39], 40.0f);
  EXPECT_EQ(out[38], 39.0f + 40.0f);
}

TEST_F(PlantedTest, AccessesOutsideAllocations) {
  Buffer in(64), out(64);
  EXPECT_THAT(Message("CopyVectors", {in.data(), nullptr, 64}, {16}),
              HasSubstr("is at a null pointer"));
  EXPECT_THAT(Message("CopyVectors", {in.data() - 4, out.data(), 64}, {16}),
              HasSubstr("before an allocation of 256 bytes"));
  // From one allocation into its neighbour.
  alignas(16) float joined[8] = {};
  Allocations::Global().Add(joined, 24);
  Allocations::Global().Add(joined + 6, 8);
  EXPECT_THAT(Message("CopyVectors", {joined, out.data(), 8}, {2}),
              HasSubstr("is at byte 16 of an allocation of 24 bytes"));
  Allocations::Global().Remove(joined);
  Allocations::Global().Remove(joined + 6);
}

TEST_F(PlantedTest, UnwrittenSharedMemory) {
  Buffer in(64), out(64);
  const Args args = {in.data(), out.data(), 64};
  EXPECT_THAT(Message("UnwrittenShared", args, {64}),
              AllOf(HasSubstr("ld.shared."),
                    HasSubstr("hasn't been written by any thread of the block "
                              "(byte 8 of the shared variable of_warp)")));
  EXPECT_EQ(Run("WrittenShared", args, {64}), absl::OkStatus());
  EXPECT_EQ(out[0], 33.0f);
}

TEST_F(PlantedTest, DivergentBarrier) {
  Buffer in(64), out(64);
  const Args args = {in.data(), out.data(), 40};
  EXPECT_THAT(
      Message("DivergentBarrier", args, {64}, {}, 256),
      AllOf(HasSubstr("bar.sync of planted.ptx:"),
            HasSubstr("waits at a barrier that 24 of 64 threads don't reach")));
  EXPECT_EQ(Run("CommonBarrier", args, {64}, {}, 256), absl::OkStatus());
  EXPECT_EQ(out[0], 40.0f);
}

TEST_F(PlantedTest, BeyondSharedMemory) {
  Buffer in(64), out(64);
  EXPECT_THAT(
      Message("CommonBarrier", {in.data(), out.data(), 40}, {64}, {}, 128),
      HasSubstr("is at byte 128 of the shared variable dynamic of 128 bytes"));
}

TEST_F(PlantedTest, BlocksThatWriteOneNumberRace) {
  Buffer in(3), out(3);
  const Args args = {in.data(), out.data(), 3};
  EXPECT_THAT(Message("BlocksRace", args, {1}, {3}),
              AllOf(HasSubstr("block (1, 0, 0)"),
                    HasSubstr("races with another block")));
  EXPECT_EQ(Run("BlocksApart", args, {1}, {3}), absl::OkStatus());
  // Launches come one after another.
  EXPECT_EQ(Run("BlocksApart", args, {1}, {3}), absl::OkStatus());
}

TEST_F(PlantedTest, LaunchesThatAGpuRefuses) {
  Buffer in(64), out(64);
  const Args args = {in.data(), out.data(), 64};
  EXPECT_THAT(Message("Strided", args, {1025}),
              HasSubstr("a block of 1025 threads"));
  EXPECT_THAT(Message("CommonBarrier", args, {64}, {}, 49153),
              HasSubstr("with 49153 bytes of shared memory"));
  EXPECT_THAT(Message("Nothing", args, {64}),
              HasSubstr("has the kernel Nothing"));
}

TEST_F(PlantedTest, BankConflictsAreCounted) {
  Buffer in(1024), out(1024);
  const Args args = {in.data(), out.data(), 1024};
  EXPECT_EQ(Run("ConflictingBanks", args, {32, 32}), absl::OkStatus());
  EXPECT_EQ(out[1], in[32]);
  // 32 warps write without conflicts, and read 32 times the same bank.
  Totals totals = TotalsOfKernel("ConflictingBanks");
  EXPECT_EQ(totals.passes, 32 + 32 * 32);
  EXPECT_EQ(totals.least_passes, 64);
  EXPECT_EQ(Run("DistinctBanks", args, {32, 32}), absl::OkStatus());
  totals = TotalsOfKernel("DistinctBanks");
  EXPECT_EQ(totals.passes, 64);
  EXPECT_EQ(totals.least_passes, 64);
  EXPECT_THAT(CountsTable(interpreter_.Programs()),
              HasSubstr("ConflictingBanks"));
}

TEST_F(PlantedTest, GenericAddressesAreOfEitherMemory) {
  Buffer in(4), out(128);
  ASSERT_EQ(Run("EitherMemory", {in.data(), out.data(), 0}, {32}),
            absl::OkStatus());
  EXPECT_EQ(out[127], 4.0f);
  Totals totals = TotalsOfKernel("EitherMemory");
  EXPECT_GT(totals.generic, 0);
  EXPECT_EQ(totals.passes, 0);
  ASSERT_EQ(Run("EitherMemory", {in.data(), out.data(), 1}, {32}, {}, 512),
            absl::OkStatus());
  EXPECT_EQ(out[31], 4.0f);
  totals = TotalsOfKernel("EitherMemory");
  EXPECT_EQ(totals.passes, 4 * totals.least_passes);
  EXPECT_THAT(Message("EitherMemory", {in.data(), out.data(), 1}, {32}, {}, 16),
              HasSubstr("of the shared variable dynamic of 16 bytes"));
}

TEST_F(PlantedTest, SectorsAreCounted) {
  Buffer in(512), out(64);
  EXPECT_EQ(Run("Strided", {in.data(), out.data(), 8}, {64}), absl::OkStatus());
  EXPECT_EQ(out[63], in[8 * 63]);
  const Totals totals = TotalsOfKernel("Strided");
  // Loads of a sector for each lane; stores of 128 bytes, from a multiple of 4.
  const bool aligned = reinterpret_cast<uintptr_t>(out.data()) % 32 == 0;
  EXPECT_EQ(totals.sectors, 64 + (aligned ? 8 : 10));
  EXPECT_EQ(totals.least_sectors, 16);
}

TEST_F(PlantedTest, DivergentLanesMeetAgain) {
  Buffer in(64), out(64);
  ASSERT_EQ(Run("Diverge", {in.data(), out.data(), 64}, {64}),
            absl::OkStatus());
  for (int warp = 0; warp < 2; ++warp) {
    float sum = 0;
    for (int t = 32 * warp; t < 32 * warp + 32; ++t) {
      if (t % 4 == 0) {
        sum += (t + 1) * (t + 2) / 2;
      } else if (t % 4 == 1) {
        sum -= t + 1;
      } else {
        sum += std::floor(std::log2(t)) + 1;
      }
    }
    for (int t = 32 * warp; t < 32 * warp + 32; ++t) EXPECT_EQ(out[t], sum);
  }
}

TEST_F(PlantedTest, BlocksAndThreadsHaveThreeDimensions) {
  Buffer out(24 * 30);
  ASSERT_EQ(Run("Places", {nullptr, out.data(), 0}, {5, 3, 2}, {2, 3, 4}),
            absl::OkStatus());
  for (int block = 0; block < 24; ++block) {
    for (int thread = 0; thread < 30; ++thread) {
      EXPECT_EQ(out[block * 30 + thread], block * 1000 + thread);
    }
  }
}

}  // namespace
}  // namespace capstan::ptx
