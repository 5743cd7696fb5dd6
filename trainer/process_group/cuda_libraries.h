// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PROCESS_GROUP_CUDA_LIBRARIES_H_
#define CAPSTAN_TRAINER_PROCESS_GROUP_CUDA_LIBRARIES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace capstan {

// Folders that may hold NVIDIA's libraries, as their wheels unpack them
// ("cudnn/lib"), of a LibTorch in `libtorch`: those of a build by Bazel, of
// //:dist and of pip. Only those that are there.
std::vector<std::string> NvidiaFolders(const std::string& libtorch);

// Opens LibTorch's CUDA library and NVIDIA's, each by its path: the loader's
// cache needn't know any, nor what they open by name at their first use (the
// compiler of cuDNN's attention, the linker of cuBLAS). One that is loaded
// already, like a preloaded one, is taken. For a process that forks no more.
absl::Status LoadLibTorchCuda();

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROCESS_GROUP_CUDA_LIBRARIES_H_
