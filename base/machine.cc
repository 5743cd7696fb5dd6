// SPDX-License-Identifier: Apache-2.0
#include "base/machine.h"

#include <dlfcn.h>
#include <sched.h>
#include <stdlib.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <fstream>
#include <limits>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace capstan {
namespace {

std::vector<std::string> FirstLineWords(const std::string& path) {
  return absl::StrSplit(FirstLineIn(path), ' ', absl::SkipWhitespace());
}

// Rounded up; 0 if the words aren't numbers ("max") or aren't positive.
int Cores(const std::string& quota_text, const std::string& period_text) {
  double quota = 0;
  double period = 0;
  if (!absl::SimpleAtod(quota_text, &quota) ||
      !absl::SimpleAtod(period_text, &period) || quota <= 0 || period <= 0) {
    return 0;
  }
  return static_cast<int>(std::ceil(quota / period));
}

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

// The first number in a file, or kUnknown ("max").
int64_t NumberIn(const std::string& path) {
  std::ifstream file(path);
  int64_t number = 0;
  return file >> number ? number : kUnknown;
}

// What a group's limit leaves; cached files don't count, as they can be
// evicted.
int64_t LeftIn(const std::string& folder, const char* limit, const char* usage,
               const char* cached) {
  const int64_t most = NumberIn(absl::StrCat(folder, "/", limit));
  const int64_t used = NumberIn(absl::StrCat(folder, "/", usage));
  if (most == kUnknown || used == kUnknown) return kUnknown;
  const int64_t files =
      NumberAfter(absl::StrCat(folder, "/memory.stat"), cached);
  return std::max<int64_t>(0, most - std::max<int64_t>(0, used - files));
}

// Folders of this process's control group and its ancestors, innermost first:
// version 2's if no controller is given, else those in version 1's hierarchy of
// `controller`. In a container the last one, the root, is the container's own
// group, and the others may be invisible.
std::vector<std::string> ControlGroups(const std::string& proc,
                                       const std::string& sys,
                                       const std::string& controller) {
  std::string path = "/";
  std::ifstream file(proc + "/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> parts =
        absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3 || parts[1] != controller) continue;
    path = parts[2];
    break;
  }
  const std::string root = absl::StrCat(
      sys, "/fs/cgroup", controller.empty() ? "" : "/", controller);
  std::vector<std::string> folders;
  while (true) {
    folders.push_back(root + path);
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos) return folders;
    path.resize(slash);
  }
}

}  // namespace

std::string FirstLineIn(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

int64_t NumberAfter(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::string word;
  int64_t number = 0;
  while (file >> word) {
    if (word == name && file >> number) return number;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return 0;
}

int CoresByQuota(const std::string& proc, const std::string& sys) {
  int cores = 0;
  const auto take = [&cores](const std::vector<std::string>& words) {
    const int found = words.size() == 2 ? Cores(words[0], words[1]) : 0;
    if (found > 0) cores = cores == 0 ? found : std::min(cores, found);
  };
  for (const std::string& group : ControlGroups(proc, sys, "")) {
    take(FirstLineWords(group + "/cpu.max"));
  }
  const std::string cpu = sys + "/fs/cgroup/cpu";
  std::vector<std::string> words = FirstLineWords(cpu + "/cpu.cfs_quota_us");
  for (std::string& word : FirstLineWords(cpu + "/cpu.cfs_period_us")) {
    words.push_back(std::move(word));
  }
  take(words);
  return cores;
}

int64_t AvailableHostMemory(const std::string& proc, const std::string& sys) {
  const int64_t kib = NumberAfter(proc + "/meminfo", "MemAvailable:");
  int64_t left = kib > 0 ? kib * 1024 : kUnknown;
  for (const std::string& group : ControlGroups(proc, sys, "")) {
    left = std::min(
        left, LeftIn(group, "memory.max", "memory.current", "inactive_file"));
  }
  for (const std::string& group : ControlGroups(proc, sys, "memory")) {
    left =
        std::min(left, LeftIn(group, "memory.limit_in_bytes",
                              "memory.usage_in_bytes", "total_inactive_file"));
  }
  return left;
}

int64_t HostMemory(const std::string& proc, const std::string& sys) {
  const int64_t ram = NumberAfter(proc + "/meminfo", "MemTotal:");
  if (ram == 0) return kUnknown;
  const int64_t swap = NumberAfter(proc + "/meminfo", "SwapTotal:") * 1024;
  int64_t most = ram * 1024;
  for (const std::string& group : ControlGroups(proc, sys, "")) {
    most = std::min(most, NumberIn(group + "/memory.max"));
  }
  for (const std::string& group : ControlGroups(proc, sys, "memory")) {
    most = std::min(most, NumberIn(group + "/memory.limit_in_bytes"));
  }
  // A group may swap out beyond its limit.
  return most + swap;
}

ProcessMemory ReadProcessMemory() {
  ProcessMemory memory;
  std::ifstream status("/proc/self/status");
  for (std::string name; status >> name;) {
    int64_t kib = 0;
    if (name == "VmRSS:" && status >> kib) memory.resident = kib * 1024;
    if (name == "VmHWM:" && status >> kib) memory.peak = kib * 1024;
    if (name == "RssAnon:" && status >> kib) memory.anonymous = kib * 1024;
    status.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return memory;
}

int AvailableCores() {
  int cores = static_cast<int>(std::thread::hardware_concurrency());
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) cores = CPU_COUNT(&set);
  const int quota = CoresByQuota("/proc", "/sys");
  if (quota > 0) cores = std::min(cores, quota);
  return std::max(1, cores);
}

std::string RealFolderOf(const char* path) {
  char real[PATH_MAX];
  if (path == nullptr || realpath(path, real) == nullptr) return "";
  const std::string text = real;
  return text.substr(0, text.rfind('/'));
}

std::string ExecutableFolder() {
  const std::string folder = RealFolderOf("/proc/self/exe");
  return folder.empty() ? "." : folder;
}

std::string LibraryFolder(const void* symbol) {
  Dl_info info;
  return dladdr(symbol, &info) == 0 ? "" : RealFolderOf(info.dli_fname);
}

}  // namespace capstan
