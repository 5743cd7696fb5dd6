// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_KERNELS_CONTEXT_RUN_DEVICE_H_
#define CAPSTAN_KERNELS_CONTEXT_RUN_DEVICE_H_

#include <cstdint>

namespace capstan {

// The device that the process and its children train on. Kernels whose
// workspace depends on it ask for it when they run and, before there is a
// tensor, when they are planned.
struct RunDevice {
  bool gpu = false;
  int64_t memory = 0;  // bytes, of the least GPU; 0: unknown
};

// Set before planning and before ranks are forked; a CPU by default.
// Thread-safe.
void SetRunDevice(const RunDevice& device);
RunDevice CurrentRunDevice();

}  // namespace capstan

#endif  // CAPSTAN_KERNELS_CONTEXT_RUN_DEVICE_H_
