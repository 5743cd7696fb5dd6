// SPDX-License-Identifier: Apache-2.0
//
// What a child process asks the driver (gpus.h), and how it tells its parent.
#ifndef CAPSTAN_BASE_GPU_DRIVER_H_
#define CAPSTAN_BASE_GPU_DRIVER_H_

#include <dlfcn.h>

#include <string>
#include <vector>

#include "base/gpus.h"

namespace capstan {

// nvmlMemory_t of nvml.h.
struct NvmlMemory {
  unsigned long long total, free, used;  // NOLINT: as there
};

// NVIDIA's management library: what CUDA doesn't tell without a context, which
// would take hundreds of MB and a second on each GPU.
class Nvml {
 public:
  // Opens it; `root`: as OpenDriverLibrary.
  explicit Nvml(const std::string& root);

  // Comes first. Whether it is there and works; if not, no call succeeds.
  bool Init();
  // Whether the function, which has the arguments' types, is there and
  // succeeds.
  template <typename... Args>
  bool Call(const char* name, Args... args) const {
    if (library_ == nullptr) return false;
    const auto function =
        reinterpret_cast<int (*)(Args...)>(dlsym(library_, name));
    return function != nullptr && function(args...) == 0;
  }

 private:
  void* library_;
};

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
