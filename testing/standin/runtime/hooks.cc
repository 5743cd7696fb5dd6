// SPDX-License-Identifier: Apache-2.0
#include "testing/standin/runtime/hooks.h"

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <mutex>
#include <string>

#include "testing/standin/device.h"

namespace capstan::standin {
namespace {

constexpr char kOperators[] = "libcapstan_standin_operators.so";

std::atomic<void*> operators{nullptr};
std::atomic<bool> settled{false};  // no need to look again

std::string OwnFolder() {
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&LoadOperators), &info) == 0) return "";
  const std::string path = info.dli_fname;
  return path.substr(0, path.rfind('/') + 1);
}

bool TorchIsLoaded() {
  void* const library =
      dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD | RTLD_GLOBAL);
  if (library != nullptr) dlclose(library);
  return library != nullptr;
}

}  // namespace

void LoadOperators() {
  if (settled.load(std::memory_order_acquire)) return;
  // The library's own constructors call CUDA, too.
  static std::recursive_mutex mutex;
  static bool loading = false;
  std::lock_guard lock(mutex);
  if (loading || settled || !TorchIsLoaded()) return;
  loading = true;
  const std::string path = OwnFolder() + kOperators;
  if (access(path.c_str(), F_OK) == 0) {
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) {
      std::fprintf(stderr, "stand-in device: %s\n", dlerror());
      _exit(2);
    }
    operators = library;
  }
  settled = true;
  loading = false;
}

void WatchAllocator() {
  static std::atomic<bool> watching{false};
  static std::recursive_mutex mutex;
  void* const library = operators;
  if (library == nullptr || watching) return;
  // Never waits: the caller may hold the allocator's lock, and who watches
  // takes it.
  std::unique_lock lock(mutex, std::try_to_lock);
  if (!lock || watching) return;
  using Function = bool (*)();
  const auto function = reinterpret_cast<Function>(
      dlsym(library, "capstan_standin_watch_allocator"));
  watching = function == nullptr || function();
}

}  // namespace capstan::standin
