// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cuda_kernels.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <unistd.h>

#include <string>

#include "base/machine.h"

namespace capstan {
namespace kernels {
namespace cuda {
namespace {

// Searches `folder` and its parents, each directly, in kernels/cuda/, where the
// library is built, and in lib/, where //:dist puts it; "" if not found.
std::string FindFrom(std::string folder) {
  for (int level = 0; level < 5 && !folder.empty(); ++level) {
    for (const char* below : {"/", "/kernels/cuda/", "/lib/"}) {
      const std::string path = folder + below + kCudaKernelsLibrary;
      if (access(path.c_str(), R_OK) == 0) return path;
    }
    folder = folder.substr(0, folder.rfind('/'));
  }
  return "";
}

const CudaKernels* Open() {
  std::string path =
      FindFrom(LibraryFolder(reinterpret_cast<const void*>(&Cuda)));
  if (path.empty()) path = FindFrom(ExecutableFolder());
  if (path.empty()) return nullptr;  // built without the CUDA Toolkit
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* error = dlerror();
    TORCH_WARN("the fused GPU kernels are not used, and steps are slower: ",
               path, " does not load: ", error == nullptr ? "?" : error);
    return nullptr;
  }
  const auto* kernels =
      static_cast<const CudaKernels*>(dlsym(library, kCudaKernelsSymbol));
  if (kernels == nullptr || kernels->size != sizeof(CudaKernels)) {
    TORCH_WARN("the fused GPU kernels are not used, and steps are slower: ",
               path, " is of another build");
    return nullptr;
  }
  return kernels;
}

}  // namespace

const CudaKernels* Cuda() {
  static const CudaKernels* const kernels = Open();
  return kernels;
}

}  // namespace cuda
}  // namespace kernels
}  // namespace capstan
