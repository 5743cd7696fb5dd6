// SPDX-License-Identifier: Apache-2.0
//
// What a child process asks the driver (gpus.h), and how it tells its parent.
#ifndef CAPSTAN_BASE_GPU_DRIVER_H_
#define CAPSTAN_BASE_GPU_DRIVER_H_

#include <string>
#include <vector>

#include "base/gpus.h"

namespace capstan {

// What the child has told so far.
struct DriverAnswer {
  std::string stage;  // what it was doing last: "cuInit"
  bool complete = false;
  int error = 0;           // CUresult of `stage`; 0: none
  std::string error_name;  // "CUDA_ERROR_NO_DEVICE"
  std::string no_library;  // why libcuda.so.1 doesn't open; empty: it does
  int cuda_version = 0;
  std::string driver_version;
  std::vector<Gpu> gpus;
};

// In the child: opens the driver's library and asks it, writing to the
// descriptor `out` before and after each call that may not return.
void TellAboutDriver(const std::string& root, int out);

// In the parent: reads what was written.
DriverAnswer ParseDriverAnswer(const std::string& text);

}  // namespace capstan

#endif  // CAPSTAN_BASE_GPU_DRIVER_H_
