// SPDX-License-Identifier: Apache-2.0
#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>

#include <cstdlib>
#include <cstring>

#include "testing/standin/runtime/report.h"

namespace capstan::standin {
namespace {

constexpr int kFrames = 48;
constexpr size_t kKept = 24;

std::string Basename(const char* path) {
  const char* const slash = std::strrchr(path, '/');
  return slash == nullptr ? path : slash + 1;
}

}  // namespace

std::string Demangled(const char* symbol) {
  int status = 0;
  char* const text = abi::__cxa_demangle(symbol, nullptr, nullptr, &status);
  std::string result = status == 0 ? text : symbol;
  std::free(text);
  return result;
}

std::vector<std::string> Stack() {
  void* frames[kFrames];
  const int count = backtrace(frames, kFrames);
  Dl_info own;
  const bool know_own = dladdr(reinterpret_cast<void*>(&JsonString), &own) != 0;
  std::vector<std::string> stack;
  for (int i = 0; i < count && stack.size() < kKept; ++i) {
    Dl_info info;
    // A return address may lie behind the function's last instruction.
    char* const at = static_cast<char*>(frames[i]) - 1;
    if (dladdr(at, &info) == 0) continue;
    if (know_own && info.dli_fbase == own.dli_fbase && stack.empty()) continue;
    const std::string library = Basename(info.dli_fname);
    if (info.dli_sname != nullptr) {
      stack.push_back(Demangled(info.dli_sname) + " (" + library + ")");
    } else {
      char offset[32];
      std::snprintf(
          offset, sizeof(offset), "+0x%zx",
          static_cast<size_t>(at - static_cast<char*>(info.dli_fbase)));
      stack.push_back(library + offset);
    }
  }
  return stack;
}

}  // namespace capstan::standin
