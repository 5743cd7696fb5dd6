// SPDX-License-Identifier: Apache-2.0
//
// Beside testing/cuda/kernels_emulator_test.cc, whose checks run on the
// interpreter here: which kernels they run, and what those cost a GPU.
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "kernels/cuda/dispatch.h"
#include "testing/cuda/emulated_kernels.h"
#include "testing/ptx/interpreted_kernels.h"
#include "testing/ptx/report.h"

namespace capstan::ptx {
namespace {

namespace cuda = kernels::cuda;

// After all tests.
class AllKernels : public ::testing::Environment {
 public:
  void TearDown() override {
    if (::testing::GTEST_FLAG(filter) != "*") return;
    const auto& programs = KernelInterpreter().Programs();
    std::fputs(CountsTable(programs).c_str(), stdout);
    for (const auto& [name, program] : programs) {
      const Totals totals = TotalsOf(program);
      EXPECT_GT(totals.executions, 0)
          << ShortName(name) << " isn't run by any check of testing/cuda";
      EXPECT_EQ(totals.generic, 0)
          << ShortName(name) << " has addresses of a space unknown to nvcc";
    }
  }
};
[[maybe_unused]] const auto* const kAllKernels =
    ::testing::AddGlobalTestEnvironment(new AllKernels);

// A row of 2048 columns, as of a model of a billion parameters.
TEST(CompiledKernels, RmsNormsBackwardHasNoBankConflicts) {
  const auto& kernels = cuda::EmulatedKernels();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    SCOPED_TRACE(c10::toString(dtype));
    const at::Tensor x = at::randn({16, 2048}).to(dtype);
    const at::Tensor weight = at::ones({2048}, x.options());
    const cuda::NormResult y = cuda::RmsNorm(kernels, x, weight, 1e-5);
    const at::Tensor d_weight = at::empty({2048}, at::kFloat);
    const auto& programs = KernelInterpreter().Programs();
    const Totals before = TotalsOfFamily(programs, "RmsNormBackwardKernel");
    cuda::RmsNormBackward(kernels, x, x, weight, y.rstd, {}, {{}, d_weight});
    const Totals totals =
        TotalsOfFamily(programs, "RmsNormBackwardKernel") - before;
    EXPECT_EQ(totals.generic, 0);
    EXPECT_EQ(totals.passes, totals.least_passes);
    EXPECT_EQ(totals.sectors, totals.least_sectors);
  }
}

TEST(CompiledKernels, CastsOfRowsSplitNoSectors) {
  const auto& kernels = cuda::EmulatedKernels();
  const at::Tensor x = at::ones({16, 2048}, at::kBFloat16);
  const auto& programs = KernelInterpreter().Programs();
  const Totals before = TotalsOfFamily(programs, "CastRowsKernel");
  for (const bool by_row : {false, true}) {
    cuda::CastFp8(kernels, x, at::kFloat8_e4m3fn, by_row,
                  /*both=*/false, 448.0f, 1e-12f);
  }
  const Totals totals = TotalsOfFamily(programs, "CastRowsKernel") - before;
  EXPECT_GT(totals.sectors, 0);
  EXPECT_EQ(totals.sectors, totals.least_sectors);
}

}  // namespace
}  // namespace capstan::ptx
