// SPDX-License-Identifier: Apache-2.0
#include "trainer/memory/device_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "trainer/memory/gpu_query.h"

namespace capstan {
namespace {

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

// The first number of a file, or kUnknown ("max").
int64_t NumberIn(const std::string& path) {
  std::ifstream file(path);
  int64_t number = 0;
  return file >> number ? number : kUnknown;
}

// The number behind `name` in a file of "name number" lines, or 0.
int64_t NumberOf(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::string word;
  int64_t number = 0;
  while (file >> word) {
    if (word == name && file >> number) return number;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return 0;
}

// What a group's limit leaves: files that are merely cached can go.
int64_t LeftIn(const std::string& folder, const char* limit, const char* usage,
               const char* cached) {
  const int64_t most = NumberIn(absl::StrCat(folder, "/", limit));
  const int64_t used = NumberIn(absl::StrCat(folder, "/", usage));
  if (most == kUnknown || used == kUnknown) return kUnknown;
  const int64_t files = NumberOf(absl::StrCat(folder, "/memory.stat"), cached);
  return std::max<int64_t>(0, most - std::max<int64_t>(0, used - files));
}

// The path of this process in the hierarchy of `controller`; "" is version 2's.
std::string GroupPath(const std::string& proc, const std::string& controller) {
  std::ifstream file(proc + "/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const std::vector<std::string> parts =
        absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() == 3 && parts[1] == controller) return parts[2];
  }
  return "/";
}

}  // namespace

int64_t AvailableHostMemory(const std::string& proc, const std::string& sys) {
  const int64_t kib = NumberOf(proc + "/meminfo", "MemAvailable:");
  int64_t left = kib > 0 ? kib * 1024 : kUnknown;
  const auto take = [&left](std::string root, std::string path,
                            const char* limit, const char* usage,
                            const char* cached) {
    // In a container the root is the container's own group, and the path may
    // name folders that are not seen there.
    for (;;) {
      left = std::min(left,
                      LeftIn(absl::StrCat(root, path), limit, usage, cached));
      const size_t slash = path.rfind('/');
      if (slash == std::string::npos) break;
      path.resize(slash);
    }
  };
  take(sys + "/fs/cgroup", GroupPath(proc, ""), "memory.max", "memory.current",
       "inactive_file");
  take(sys + "/fs/cgroup/memory", GroupPath(proc, "memory"),
       "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file");
  return left;
}

int64_t AvailableHostMemory() { return AvailableHostMemory("/proc", "/sys"); }

int64_t FreeGpuMemory() {
  int64_t least = kUnknown;
  for (const std::string& text : QueryGpus("memory.free")) {
    int64_t mib = 0;
    if (absl::SimpleAtoi(text, &mib)) least = std::min(least, mib << 20);
  }
  return least;
}

}  // namespace capstan
