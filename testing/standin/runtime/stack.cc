// SPDX-License-Identifier: Apache-2.0
#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

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

namespace {

struct Frame {
  const void* library = nullptr;  // its base; null: unknown
  std::string text;
};

// dladdr reads a library's whole table of symbols, and LibTorch's are large.
const Frame& FrameAt(char* at) {
  static std::mutex mutex;
  static auto* const known = new std::unordered_map<char*, Frame>;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto made = known->try_emplace(at);
  Frame& frame = made.first->second;
  Dl_info info;
  if (!made.second || dladdr(at, &info) == 0) return frame;
  frame.library = info.dli_fbase;
  const std::string library = Basename(info.dli_fname);
  if (info.dli_sname != nullptr) {
    frame.text = Demangled(info.dli_sname) + " (" + library + ")";
  } else {
    char offset[32];
    std::snprintf(offset, sizeof(offset), "+0x%zx",
                  static_cast<size_t>(at - static_cast<char*>(info.dli_fbase)));
    frame.text = library + offset;
  }
  return frame;
}

}  // namespace

std::vector<std::string> Stack() {
  void* frames[kFrames];
  const int count = backtrace(frames, kFrames);
  static const void* const own =
      FrameAt(reinterpret_cast<char*>(&JsonString)).library;
  std::vector<std::string> stack;
  for (int i = 0; i < count && stack.size() < kKept; ++i) {
    // A return address may lie behind the function's last instruction.
    const Frame& frame = FrameAt(static_cast<char*>(frames[i]) - 1);
    if (frame.library == nullptr) continue;
    if (frame.library == own && stack.empty()) continue;
    stack.push_back(frame.text);
  }
  return stack;
}

}  // namespace capstan::standin
