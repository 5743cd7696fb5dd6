// SPDX-License-Identifier: Apache-2.0
#include "cluster/comm/cuda_libraries.h"

#include <dirent.h>
#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/machine.h"

namespace capstan {
namespace {

// The libraries that libtorch_cuda.so of LibTorch 2.11.0 is linked with, and
// those that these open by name: nvrtc opens its built-in headers; cuDNN,
// cuBLASLt and LibTorch open nvrtc and nvJitLink. Each follows those that it
// needs.
constexpr const char* kLibraries[] = {
    "libcudart.so.13",   "libnvJitLink.so.13",   "libnvrtc-builtins.so.13.0",
    "libnvrtc.so.13",    "libcublasLt.so.13",    "libcublas.so.13",
    "libcufft.so.12",    "libcufile.so.0",       "libcurand.so.10",
    "libcusparse.so.12", "libcusparseLt.so.0",   "libcudnn.so.9",
    "libnccl.so.2",      "libnvshmem_host.so.3",
};

std::string LoadError() {
  const char* error = dlerror();
  return error == nullptr ? "unknown error of the dynamic loader" : error;
}

std::string LibTorchFolder() {
  void* torch = dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD);
  link_map* map = nullptr;
  if (torch == nullptr || dlinfo(torch, RTLD_DI_LINKMAP, &map) != 0) return "";
  return RealFolderOf(map->l_name);
}

// Empty if none of the folders has it.
std::string PathOf(const std::string& name,
                   const std::vector<std::string>& folders) {
  for (const std::string& folder : folders) {
    const std::string path = absl::StrCat(folder, "/", name);
    if (access(path.c_str(), R_OK) == 0) return path;
  }
  return "";
}

// Binds lazily, since most of their functions are never called.
void LoadNvidiaLibraries(const std::vector<std::string>& folders) {
  for (const char* const name : kLibraries) {
    if (dlopen(name, RTLD_LAZY | RTLD_NOLOAD) != nullptr) continue;
    const std::string path = PathOf(name, folders);
    // If libtorch_cuda.so needs it, opening that fails with an error.
    dlopen(path.empty() ? name : path.c_str(), RTLD_LAZY | RTLD_LOCAL);
  }
}

}  // namespace

std::vector<std::string> NvidiaFolders(const std::string& libtorch) {
  std::vector<std::string> folders;
  for (const char* const place :
       {"/../../../../nvidia/site/nvidia",  // Bazel's @libtorch and @nvidia
        "/nvidia",                          // //:dist
        "/../../nvidia"}) {                 // pip
    const std::string root = libtorch + place;
    DIR* const entries = opendir(root.c_str());
    if (entries == nullptr) continue;
    std::vector<std::string> found;
    while (const dirent* entry = readdir(entries)) {
      const std::string folder = absl::StrCat(root, "/", entry->d_name, "/lib");
      if (entry->d_name[0] != '.' && access(folder.c_str(), X_OK) == 0) {
        found.push_back(folder);
      }
    }
    closedir(entries);
    std::sort(found.begin(), found.end());
    folders.insert(folders.end(), found.begin(), found.end());
  }
  return folders;
}

absl::Status LoadLibTorchCuda() {
  constexpr char kName[] = "libtorch_cuda.so";
  const std::string libtorch = LibTorchFolder();
  LoadNvidiaLibraries(NvidiaFolders(libtorch));
  const std::string beside = absl::StrCat(libtorch, "/", kName);
  const bool there = access(beside.c_str(), R_OK) == 0;
  if (dlopen(there ? beside.c_str() : kName, RTLD_NOW | RTLD_GLOBAL) !=
      nullptr) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "LibTorch's CUDA library does not load: ", LoadError(),
      "; NVIDIA's libraries come with a build on a machine with a GPU, or one "
      "with --repo_env=CAPSTAN_GPU=on"));
}

}  // namespace capstan
