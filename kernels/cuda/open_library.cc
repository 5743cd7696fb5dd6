// SPDX-License-Identifier: Apache-2.0
//
// Finds and opens libcapstan_kernels_cuda.so.
#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/own_library.h"
#include "kernels/cuda/cuda_kernels_hash.h"
#include "kernels/cuda/dispatch.h"

namespace capstan::kernels::cuda {
namespace {

// The library's path; "" if it wasn't built, for want of a CUDA Toolkit.
std::string FindLibrary() {
  const char* const chosen = std::getenv(kCudaKernelsVariable);
  if (chosen != nullptr && chosen[0] != '\0') {
    TORCH_CHECK(access(chosen, R_OK) == 0, kCudaKernelsVariable, ": ", chosen,
                " can't be read: ", std::strerror(errno));
    return chosen;
  }
  return FindOwnLibrary(kCudaKernelsLibrary, "kernels/cuda");
}

const CudaKernels* Open() {
  const std::string path = FindLibrary();
  if (path.empty()) return nullptr;
  const absl::StatusOr<void*> symbol =
      LibrarySymbol(path, kCudaKernelsLibrary, kCudaKernelsSymbol,
                    RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!symbol.ok()) {
    TORCH_WARN("the fused GPU kernels are not used, and steps are slower: ",
               symbol.status().message());
    return nullptr;
  }
  const auto* kernels = static_cast<const CudaKernels*>(*symbol);
  const std::string refusal = Refusal(kernels);
  if (refusal.empty()) return kernels;
  TORCH_WARN("the fused GPU kernels are not used, and steps are slower: ", path,
             " ", refusal);
  return nullptr;
}

}  // namespace

std::string Refusal(const CudaKernels* kernels) {
  const char* advice = "; build it and the program from one source";
  if (kernels == nullptr) {
    return absl::StrCat("has no ", kCudaKernelsSymbol, advice);
  }
  if (kernels->hash != CAPSTAN_CUDA_KERNELS_HASH) {
    return absl::StrCat(
        "is of another build: its interface is ",
        absl::Hex(kernels->hash, absl::kZeroPad16), ", the program's ",
        absl::Hex(CAPSTAN_CUDA_KERNELS_HASH, absl::kZeroPad16), advice);
  }
  return "";
}

const CudaKernels* Cuda() {
  static const CudaKernels* const kernels = Open();
  return kernels;
}

}  // namespace capstan::kernels::cuda
