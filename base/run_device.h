// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_BASE_RUN_DEVICE_H_
#define CAPSTAN_BASE_RUN_DEVICE_H_

#include <cstdint>

namespace capstan {

// What the process and its children train on: kernels whose workspace depends
// on the device ask for it when they run and when they are planned, before
// there is a tensor.
struct RunDevice {
  bool gpu = false;
  int64_t memory = 0;  // bytes, of the least GPU; 0: unknown
};

// Set before planning and before ranks are forked; at first a CPU. Any thread.
void SetRunDevice(const RunDevice& device);
RunDevice CurrentRunDevice();

}  // namespace capstan

#endif  // CAPSTAN_BASE_RUN_DEVICE_H_
