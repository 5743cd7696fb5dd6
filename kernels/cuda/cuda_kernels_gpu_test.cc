// SPDX-License-Identifier: Apache-2.0
//
// Compares every kernel on this machine's first GPU with ATen in float64 on the
// CPU, twice, to check that bits repeat. Skipped without a GPU, as
// tests/gpu/run.sh reports.
#include <gtest/gtest.h>

#include <memory>

#include "base/gpus.h"
#include "cluster/comm/create.h"
#include "cluster/launch/launcher.h"
#include "plugins/sdk/process_group.h"
#include "testing/cuda/checks.h"

namespace capstan::kernels::cuda {
namespace {

TEST(CudaKernelsGpu, MatchDoublePrecisionAndRepeat) {
  if (CountGpus() == 0) GTEST_SKIP() << "no GPU";
  // Loads LibTorch's CUDA part and initialises the GPU.
  const auto group = CreateProcessGroup(RankInfo(), CountGpus());
  ASSERT_TRUE(group.ok()) << group.status();
  const CudaKernels* cuda = Cuda();
  ASSERT_NE(cuda, nullptr) << "no " << kCudaKernelsLibrary;
  if (cuda->capability(0) < kLeastCapability) {
    GTEST_SKIP() << "compute capability below 8.0";
  }
  const Subject subject = {*cuda, at::Device(at::kCUDA, 0)};
  for (const bool large : {false, true}) {
    for (const NamedCheck& check : AllChecks(large)) {
      SCOPED_TRACE(check.name);
      const Outputs once = check.run(subject), twice = check.run(subject);
      for (size_t i = 0; i < once.size(); ++i) {
        EXPECT_TRUE(SameBits(once[i], twice[i])) << "output " << i;
      }
    }
  }
}

}  // namespace
}  // namespace capstan::kernels::cuda
