// SPDX-License-Identifier: Apache-2.0
#include "trainer/memory/process_memory.h"

#include <c10/core/CachingDeviceAllocator.h>

#include <fstream>
#include <limits>
#include <string>

namespace capstan {

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

int64_t PeakGpuMemory(c10::Device gpu) {
  // In c10, so that the core needs none of CUDA's libraries.
  const c10::CachingDeviceAllocator::DeviceStats stats =
      c10::getDeviceAllocator(gpu.type())->getDeviceStats(gpu.index());
  constexpr auto kAll =
      static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return stats.allocated_bytes[kAll].peak;
}

}  // namespace capstan
