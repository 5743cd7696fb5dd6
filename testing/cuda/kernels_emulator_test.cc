// SPDX-License-Identifier: Apache-2.0
//
// Compares every kernel, run by the emulator (in testing/ptx by an
// interpreter), with ATen in float64, in both orders of threads, which must not
// matter.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cuda/dispatch.h"
#include "testing/cuda/checks.h"
#include "testing/cuda/emulated_kernels.h"

namespace capstan::kernels::cuda {
namespace {

using ::testing::HasSubstr;

TEST(CudaKernelsInEmulator, MatchDoublePrecisionInEitherOrder) {
  const Subject subject = {EmulatedKernels(), at::kCPU};
  for (const NamedCheck& check : AllChecks(/*large=*/false)) {
    SCOPED_TRACE(check.name);
    EmulateBackwards(false);
    const Outputs forwards = check.run(subject);
    EmulateBackwards(true);
    const Outputs backwards = check.run(subject);
    EmulateBackwards(false);
    ASSERT_EQ(forwards.size(), backwards.size());
    for (size_t i = 0; i < forwards.size(); ++i) {
      EXPECT_TRUE(SameBits(forwards[i], backwards[i])) << "output " << i;
    }
  }
}

TEST(CudaKernelsTable, OfAnotherBuildIsRefused) {
  CudaKernels table = EmulatedKernels();
  EXPECT_EQ(Refusal(&table), "");
  ++table.hash;
  EXPECT_THAT(Refusal(&table), HasSubstr("another build: its interface is"));
  EXPECT_THAT(Refusal(nullptr), HasSubstr(kCudaKernelsSymbol));
}

}  // namespace
}  // namespace capstan::kernels::cuda
