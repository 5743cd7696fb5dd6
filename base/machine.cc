// SPDX-License-Identifier: Apache-2.0
#include "base/machine.h"

#include <dirent.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace capstan {
namespace {

// The first line's words; none where the file can't be read.
std::vector<std::string> FirstLineWords(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return {};
  return absl::StrSplit(line, ' ', absl::SkipWhitespace());
}

// Rounded up; 0 where the words are no numbers ("max") or not positive.
int Cores(const std::string& quota_text, const std::string& period_text) {
  double quota = 0;
  double period = 0;
  if (!absl::SimpleAtod(quota_text, &quota) ||
      !absl::SimpleAtod(period_text, &period) || quota <= 0 || period <= 0) {
    return 0;
  }
  return static_cast<int>(std::ceil(quota / period));
}

// The path of this process in version 2's one hierarchy: the line "0::/path".
std::string GroupPath(const std::string& proc) {
  std::ifstream file(proc + "/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    if (absl::StartsWith(line, "0::")) return line.substr(3);
  }
  return "/";
}

}  // namespace

int CoresByQuota(const std::string& proc, const std::string& sys) {
  const std::string root = sys + "/fs/cgroup";
  int cores = 0;
  const auto take = [&cores](int found) {
    if (found > 0) cores = cores == 0 ? found : std::min(cores, found);
  };
  // In a container the root is the container's own group, and the path may
  // name folders that are not seen there.
  for (std::string path = GroupPath(proc);;) {
    const auto words = FirstLineWords(absl::StrCat(root, path, "/cpu.max"));
    if (words.size() == 2) take(Cores(words[0], words[1]));
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos || path.size() <= 1) break;
    path.resize(slash);
  }
  const auto quota = FirstLineWords(root + "/cpu/cpu.cfs_quota_us");
  const auto period = FirstLineWords(root + "/cpu/cpu.cfs_period_us");
  if (quota.size() == 1 && period.size() == 1) {
    take(Cores(quota[0], period[0]));
  }
  return cores;
}

int CountGpusIn(const std::string& gpus_folder, const char* visible) {
  DIR* folder = opendir(gpus_folder.c_str());
  if (folder == nullptr) return 0;
  int gpus = 0;
  while (const dirent* entry = readdir(folder)) {
    if (entry->d_name[0] != '.') ++gpus;
  }
  closedir(folder);
  if (visible == nullptr) return gpus;

  int listed = 0;
  for (absl::string_view entry : absl::StrSplit(visible, ',')) {
    entry = absl::StripAsciiWhitespace(entry);
    int index = 0;
    if (entry.empty()) break;
    // What is no number is a UUID.
    if (absl::SimpleAtoi(entry, &index) && (index < 0 || index >= gpus)) break;
    ++listed;
  }
  return std::min(listed, gpus);
}

int AvailableCores() {
  int cores = static_cast<int>(std::thread::hardware_concurrency());
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) cores = CPU_COUNT(&set);
  const int quota = CoresByQuota("/proc", "/sys");
  if (quota > 0) cores = std::min(cores, quota);
  return std::max(1, cores);
}

int CountGpus() {
  return CountGpusIn("/proc/driver/nvidia/gpus",
                     std::getenv("CUDA_VISIBLE_DEVICES"));
}

}  // namespace capstan
