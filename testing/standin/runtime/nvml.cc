// SPDX-License-Identifier: Apache-2.0
//
// libnvidia-ml.so.1: all devices of the machine, whatever CUDA_VISIBLE_DEVICES
// says. (nvml.h isn't in every CUDA Toolkit: what is used of it is declared
// here, as its ABI has it.)
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "testing/standin/device.h"
#include "testing/standin/runtime/properties.h"
#include "testing/standin/runtime/settings.h"

namespace capstan::standin {
namespace {

constexpr int kSuccess = 0;          // NVML_SUCCESS
constexpr int kInvalidArgument = 2;  // NVML_ERROR_INVALID_ARGUMENT
constexpr int kNotSupported = 3;     // NVML_ERROR_NOT_SUPPORTED
constexpr int kNotFound = 6;         // NVML_ERROR_NOT_FOUND

// A device's handle is its number, from 1.
void* HandleOf(int device) {
  return reinterpret_cast<void*>(static_cast<intptr_t>(device) + 1);
}

int DeviceOf(void* handle) {
  const auto device = static_cast<int>(reinterpret_cast<intptr_t>(handle)) - 1;
  return device < TheSettings().gpus ? device : -1;
}

int Copy(const std::string& text, char* to, unsigned length) {
  std::snprintf(to, length, "%s", text.c_str());
  return kSuccess;
}

struct Memory {
  unsigned long long total;  // NOLINT: as in nvml.h
  unsigned long long free;   // NOLINT
  unsigned long long used;   // NOLINT
};

}  // namespace
}  // namespace capstan::standin

extern "C" {

using capstan::standin::Copy;
using capstan::standin::DeviceOf;
using capstan::standin::HandleOf;
using capstan::standin::kInvalidArgument;
using capstan::standin::kNotFound;
using capstan::standin::kNotSupported;
using capstan::standin::kSuccess;

int nvmlInit_v2() { return kSuccess; }
int nvmlInitWithFlags(unsigned) { return kSuccess; }
int nvmlShutdown() { return kSuccess; }

const char* nvmlErrorString(int error) {
  return error == kSuccess ? "Success" : "Not Supported";
}

int nvmlSystemGetDriverVersion(char* version, unsigned length) {
  return Copy(capstan::standin::Setting("driver", "580.95.05"), version,
              length);
}

int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 13000;
  return kSuccess;
}

int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(capstan::standin::TheSettings().gpus);
  return kSuccess;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** handle) {
  if (index >= static_cast<unsigned>(capstan::standin::TheSettings().gpus)) {
    return kInvalidArgument;
  }
  *handle = HandleOf(static_cast<int>(index));
  return kSuccess;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** handle) {
  for (int i = 0; i < capstan::standin::TheSettings().gpus; ++i) {
    // Some give the domain four digits and some eight.
    const std::string own = capstan::standin::PciBusId(i);
    if (own == id || own.substr(4) == id) {
      *handle = HandleOf(i);
      return kSuccess;
    }
  }
  return kNotFound;
}

int nvmlDeviceGetName(void* handle, char* name, unsigned length) {
  if (DeviceOf(handle) < 0) return kInvalidArgument;
  return Copy(capstan::standin::TheCard().name, name, length);
}

int nvmlDeviceGetUUID(void* handle, char* uuid, unsigned length) {
  const int device = DeviceOf(handle);
  if (device < 0) return kInvalidArgument;
  return Copy(capstan::standin::UuidText(device), uuid, length);
}

int nvmlDeviceGetMemoryInfo(void* handle, capstan::standin::Memory* memory) {
  if (DeviceOf(handle) < 0) return kInvalidArgument;
  // What other processes use isn't known here.
  memory->total = static_cast<uint64_t>(capstan::standin::DeviceMemory());
  memory->free = memory->total;
  memory->used = 0;
  return kSuccess;
}

int nvmlDeviceGetCudaComputeCapability(void* handle, int* major, int* minor) {
  if (DeviceOf(handle) < 0) return kInvalidArgument;
  *major = capstan::standin::TheCard().major;
  *minor = capstan::standin::TheCard().minor;
  return kSuccess;
}

int nvmlDeviceGetMigMode(void*, unsigned*, unsigned*) { return kNotSupported; }

int nvmlDeviceGetComputeRunningProcesses(void*, unsigned* count, void*) {
  *count = 0;
  return kSuccess;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void*, unsigned* count, void*) {
  *count = 0;
  return kSuccess;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void*, unsigned, int*) {
  return kNotSupported;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void*, unsigned, void*) {
  return kNotSupported;
}

int nvmlDeviceGetGpuFabricInfoV(void*, void*) { return kNotSupported; }

}  // extern "C"
