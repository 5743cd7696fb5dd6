// SPDX-License-Identifier: Apache-2.0
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/machine.h"
#include "cluster/launch/network.h"
#include "desk/doctor/host.h"

namespace capstan::doctor {
namespace {

// Sorted; empty if there is no such folder.
std::vector<std::string> Entries(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end;
       !error && entry != end; entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

absl::optional<int64_t> SoftLimit(__rlimit_resource resource) {
  rlimit limit = {};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return absl::nullopt;
  }
  return static_cast<int64_t>(limit.rlim_cur);
}

// The folder of this process's control group (version 2).
std::string ControlGroup(const std::string& root) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    absl::string_view path = line;
    if (absl::ConsumePrefix(&path, "0::")) {
      return absl::StrCat(root, "/sys/fs/cgroup", path);
    }
  }
  return root + "/sys/fs/cgroup";
}

// The word in brackets: "always [madvise] never".
std::string Chosen(const std::string& line) {
  const size_t begin = line.find('[');
  const size_t end = line.find(']');
  if (begin == std::string::npos || end == std::string::npos) return "";
  return line.substr(begin + 1, end - begin - 1);
}

std::vector<FabricPort> ReadFabric(const std::string& root) {
  std::vector<FabricPort> found;
  const std::string devices = root + "/sys/class/infiniband";
  for (const std::string& device : Entries(devices)) {
    const std::string ports = absl::StrCat(devices, "/", device, "/ports");
    for (const std::string& port : Entries(ports)) {
      const std::string folder = absl::StrCat(ports, "/", port);
      // "4: ACTIVE"
      const std::vector<std::string> state =
          absl::StrSplit(FirstLineIn(folder + "/state"), ": ");
      found.push_back({absl::StrCat(device, " port ", port), state.back(),
                       FirstLineIn(folder + "/rate")});
    }
  }
  return found;
}

}  // namespace

double RealSeconds() {
  return std::chrono::duration<double>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

HostFacts ReadHost(const std::string& root, int gpus) {
  HostFacts facts;
  facts.gpus = gpus;
  struct statvfs shm = {};
  if (statvfs((root + "/dev/shm").c_str(), &shm) == 0) {
    facts.shm_size = static_cast<int64_t>(shm.f_blocks * shm.f_frsize);
    facts.shm_free = static_cast<int64_t>(shm.f_bavail * shm.f_frsize);
  }
  facts.open_files = SoftLimit(RLIMIT_NOFILE);
  facts.locked_bytes = SoftLimit(RLIMIT_MEMLOCK);
  facts.processes = SoftLimit(RLIMIT_NPROC);
  const std::string proc = root + "/proc";
  const std::string sys = root + "/sys";
  facts.cores = AvailableCores();
  facts.cores_of_machine = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  facts.cores_by_quota = CoresByQuota(proc, sys);
  const std::string group = ControlGroup(root);
  facts.quota_periods = NumberAfter(group + "/cpu.stat", "nr_periods");
  facts.throttled_periods = NumberAfter(group + "/cpu.stat", "nr_throttled");
  facts.memory = HostMemory(proc, sys);
  facts.available_memory = AvailableHostMemory(proc, sys);
  facts.killed_for_memory = NumberAfter(group + "/memory.events", "oom_kill");
  facts.huge_pages =
      Chosen(FirstLineIn(sys + "/kernel/mm/transparent_hugepage/enabled"));
  const std::string frequency = sys + "/devices/system/cpu/cpu0/cpufreq/";
  facts.governor = FirstLineIn(frequency + "scaling_governor");
  facts.frequency_driver = FirstLineIn(frequency + "scaling_driver");
  facts.clock_source = FirstLineIn(
      sys + "/devices/system/clocksource/clocksource0/current_clocksource");
  timex state = {};
  facts.clock_synchronised = adjtimex(&state) != TIME_ERROR;
  facts.fabric = ReadFabric(root);
  facts.has_verbs = UnusableFabric(root).empty();
  return facts;
}

Moment ReadMoment(const std::string& root) {
  Moment moment;
  // "cpu  user nice system idle iowait irq softirq steal guest guest_nice";
  // the last two are part of the first.
  const std::vector<std::string> words = absl::StrSplit(
      FirstLineIn(root + "/proc/stat"), ' ', absl::SkipWhitespace());
  for (size_t i = 1; i < std::min<size_t>(9, words.size()); ++i) {
    int64_t ticks = 0;
    if (!absl::SimpleAtoi(words[i], &ticks)) continue;
    moment.ticks += ticks;
    if (i == 8) moment.stolen_ticks = ticks;
  }
  moment.real_seconds = RealSeconds();
  moment.monotonic_seconds = MonotonicSeconds();
  return moment;
}

}  // namespace capstan::doctor
