// SPDX-License-Identifier: Apache-2.0
#include "kernels/context/run_device.h"

#include <atomic>

namespace capstan {
namespace {

std::atomic<bool> gpu{false};
std::atomic<int64_t> memory{0};

}  // namespace

void SetRunDevice(const RunDevice& device) {
  gpu = device.gpu;
  memory = device.memory;
}

RunDevice CurrentRunDevice() { return {gpu, memory}; }

}  // namespace capstan
