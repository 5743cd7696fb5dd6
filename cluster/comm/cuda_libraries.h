// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_COMM_CUDA_LIBRARIES_H_
#define CAPSTAN_CLUSTER_COMM_CUDA_LIBRARIES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace capstan {

// Returns the existing folders that may hold NVIDIA's libraries for a LibTorch
// in `libtorch`, as their wheels unpack them ("cudnn/lib"): those of a Bazel
// build, of //:dist and of pip.
std::vector<std::string> NvidiaFolders(const std::string& libtorch);

// Opens LibTorch's CUDA library and NVIDIA's by their paths, so that the
// loader's cache needn't know them, nor the libraries that they open by name at
// their first use (the compiler of cuDNN's attention, the linker of cuBLAS).
// Uses a library that is already loaded, such as a preloaded one. The process
// must not fork afterwards.
absl::Status LoadLibTorchCuda();

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_COMM_CUDA_LIBRARIES_H_
