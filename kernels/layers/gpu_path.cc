// SPDX-License-Identifier: Apache-2.0
#include "kernels/layers/gpu_path.h"

#include <atomic>

namespace capstan::kernels {
namespace {

std::atomic<int> tests{0};

}  // namespace

bool OnGpuPath(const at::Tensor& x) {
  return x.is_cuda() || tests.load(std::memory_order_relaxed) > 0;
}

GpuPathForTest::GpuPathForTest() { ++tests; }
GpuPathForTest::~GpuPathForTest() { --tests; }

}  // namespace capstan::kernels
