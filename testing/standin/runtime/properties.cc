// SPDX-License-Identifier: Apache-2.0
//
// Numbers from NVIDIA's CUDA C++ Programming Guide (compute capabilities) and
// the cards' datasheets.
#include "testing/standin/runtime/properties.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "testing/standin/runtime/settings.h"

namespace capstan::standin {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// setting, name, capability, SMs, memory, shared memory (block, SM), threads an
// SM, L2, bus, memory clock, clock.
const Card kCards[] = {
    {"a100", "NVIDIA A100-SXM4-80GB", 8, 0, 108, 81153 * kMiB, 166912, 167936,
     2048, 40 * kMiB, 5120, 1593000, 1410000},
    {"h100", "NVIDIA H100 80GB HBM3", 9, 0, 132, 81079 * kMiB, 232448, 233472,
     2048, 50 * kMiB, 5120, 2619000, 1980000},
    {"h200", "NVIDIA H200", 9, 0, 132, 143167 * kMiB, 232448, 233472, 2048,
     60 * kMiB, 6144, 3201000, 1980000},
    {"b200", "NVIDIA B200", 10, 0, 148, 182642 * kMiB, 232448, 233472, 2048,
     126 * kMiB, 8192, 3996000, 1965000},
};

std::vector<int> ReadVisible() {
  const int count = TheSettings().gpus;
  std::vector<int> devices;
  const char* const variable = std::getenv("CUDA_VISIBLE_DEVICES");
  if (variable == nullptr) {
    for (int i = 0; i < count; ++i) devices.push_back(i);
    return devices;
  }
  std::string rest = variable;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    std::string one = rest.substr(0, comma);
    rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
    while (!one.empty() && one.front() == ' ') one.erase(0, 1);
    int found = -1;
    if (!one.empty() && std::isdigit(static_cast<unsigned char>(one[0]))) {
      found = std::atoi(one.c_str());
    } else if (one.rfind("GPU-", 0) == 0) {
      for (int i = 0; i < count; ++i) {
        if (UuidText(i).rfind(one, 0) == 0) found = i;
      }
    }
    if (found < 0 || found >= count) break;
    for (int device : devices) {
      // CUDA takes a list with a device twice for an empty one.
      if (device == found) return {};
    }
    devices.push_back(found);
  }
  return devices;
}

}  // namespace

const Card& TheCard() {
  for (const Card& card : kCards) {
    if (TheSettings().gpu == card.setting) return card;
  }
  std::fprintf(stderr, "CAPSTAN_STANDIN: no gpu=%s; there are:",
               TheSettings().gpu.c_str());
  for (const Card& card : kCards) std::fprintf(stderr, " %s", card.setting);
  std::fprintf(stderr, "\n");
  std::_Exit(2);
}

int64_t DeviceMemory() {
  return TheSettings().memory > 0 ? TheSettings().memory : TheCard().memory;
}

const std::vector<int>& VisibleDevices() {
  static const auto* const devices = new std::vector<int>(ReadVisible());
  return *devices;
}

std::string UuidOf(int device) {
  std::string uuid = "capstan-standin";
  uuid.push_back(static_cast<char>('0' + device));
  // The number first, so that a short beginning tells devices apart.
  std::swap(uuid[0], uuid[15]);
  return uuid;
}

std::string UuidText(int device) {
  const std::string uuid = UuidOf(device);
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    char hex[3];
    std::snprintf(hex, sizeof(hex), "%02x",
                  static_cast<unsigned char>(uuid[i]));
    if (i == 4 || i == 6 || i == 8 || i == 10) text += "-";
    text += hex;
  }
  return text;
}

std::string PciBusId(int device) {
  char text[32];
  std::snprintf(text, sizeof(text), "00000000:%02X:00.0", device + 1);
  return text;
}

int DeviceAttribute(int attribute, int device) {
  const Card& card = TheCard();
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      return 1024;
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY:
      return 1024;
    case cudaDevAttrMaxBlockDimZ:
      return 64;
    case cudaDevAttrMaxGridDimX:
      return 2147483647;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ:
      return 65535;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      return 49152;
    case cudaDevAttrTotalConstantMemory:
      return 65536;
    case cudaDevAttrWarpSize:
      return 32;
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor:
      return 65536;
    case cudaDevAttrClockRate:
      return card.clock_khz;
    case cudaDevAttrMemoryClockRate:
      return card.memory_khz;
    case cudaDevAttrGlobalMemoryBusWidth:
      return card.memory_bus_bits;
    case cudaDevAttrL2CacheSize:
      return static_cast<int>(card.l2);
    case cudaDevAttrMultiProcessorCount:
      return card.multiprocessors;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      return card.threads_per_sm;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      return card.shared_per_sm;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      return card.shared_optin;
    case cudaDevAttrReservedSharedMemoryPerBlock:
      return 1024;
    case cudaDevAttrMaxBlocksPerMultiprocessor:
      return 32;
    case cudaDevAttrComputeCapabilityMajor:
      return card.major;
    case cudaDevAttrComputeCapabilityMinor:
      return card.minor;
    case cudaDevAttrPciBusId:
      return device + 1;
    case cudaDevAttrAsyncEngineCount:
      return 3;
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrStreamPrioritiesSupported:
    case cudaDevAttrGlobalL1CacheSupported:
    case cudaDevAttrLocalL1CacheSupported:
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrHostRegisterSupported:
    case cudaDevAttrComputePreemptionSupported:
    case cudaDevAttrCanUseHostPointerForRegisteredMem:
    case cudaDevAttrEccEnabled:
      return 1;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
      return TheSettings().paper ? 0 : 1;
    default:
      return 0;  // what programs must do without
  }
}

}  // namespace capstan::standin
