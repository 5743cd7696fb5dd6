// SPDX-License-Identifier: Apache-2.0
//
// libcuda.so.1: what LibTorch and the launcher ask of the driver.
#include <cuda.h>

#include <cstdio>
#include <cstring>

#include "testing/standin/runtime/hooks.h"
#include "testing/standin/runtime/machine.h"
#include "testing/standin/runtime/memory.h"
#include "testing/standin/runtime/properties.h"

namespace capstan::standin {
namespace {

bool Exists(CUdevice device) {
  return device >= 0 && device < static_cast<int>(VisibleDevices().size());
}

constexpr size_t kGranularity = size_t{2} << 20;

CUresult Driver(cudaError_t error) { return static_cast<CUresult>(error); }

}  // namespace
}  // namespace capstan::standin

extern "C" {

using capstan::standin::Exists;
using capstan::standin::VisibleDevices;

CUresult cuInit(unsigned) {
  if (capstan::standin::Begin() == cudaErrorInitializationError) {
    return CUDA_ERROR_NOT_INITIALIZED;
  }
  return VisibleDevices().empty() ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
  *version = 13000;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  *count = static_cast<int>(VisibleDevices().size());
  return CUDA_SUCCESS;
}

// What LibTorch asks before it makes a handle of cuBLAS: null or not.
CUresult cuCtxGetCurrent(CUcontext* context) {
  static char any;
  *context = capstan::standin::HasContext(capstan::standin::CurrentDevice())
                 ? reinterpret_cast<CUcontext>(&any)
                 : nullptr;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (!Exists(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  if (!Exists(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(name, static_cast<size_t>(length), "%s",
                capstan::standin::TheCard().name);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  if (!Exists(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::memcpy(uuid, capstan::standin::UuidOf(VisibleDevices()[device]).data(),
              16);
  return CUDA_SUCCESS;
}

#undef cuDeviceGetUuid
CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  return cuDeviceGetUuid_v2(uuid, device);
}

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  if (!Exists(device)) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = static_cast<size_t>(capstan::standin::DeviceMemory());
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute,
                              CUdevice device) {
  if (!Exists(device)) return CUDA_ERROR_INVALID_DEVICE;
  *value =
      capstan::standin::DeviceAttribute(attribute, VisibleDevices()[device]);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char* id, int length, CUdevice device) {
  if (!Exists(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(id, static_cast<size_t>(length), "%s",
                capstan::standin::PciBusId(VisibleDevices()[device]).c_str());
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags,
                                    int* active) {
  if (!Exists(device)) return CUDA_ERROR_INVALID_DEVICE;
  *flags = 0;
  *active = capstan::standin::HasContext(device) ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
  return cudaMemGetInfo(free_bytes, total) == cudaSuccess ? CUDA_SUCCESS
                                                          : CUDA_ERROR_UNKNOWN;
}

CUresult cuMemGetAllocationGranularity(size_t* granularity,
                                       const CUmemAllocationProp*,
                                       CUmemAllocationGranularity_flags) {
  *granularity = capstan::standin::kGranularity;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* begin, size_t bytes, size_t,
                             CUdeviceptr, unsigned long long) {
  return capstan::standin::Driver(capstan::standin::ReserveAddresses(
      static_cast<int64_t>(bytes), reinterpret_cast<void**>(begin)));
}

CUresult cuMemAddressFree(CUdeviceptr begin, size_t) {
  return capstan::standin::Driver(
      capstan::standin::FreeAddresses(reinterpret_cast<void*>(begin)));
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                     const CUmemAllocationProp* prop, unsigned long long) {
  if (!Exists(prop->location.id) ||
      bytes % capstan::standin::kGranularity != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // To be shared between machines.
  if (prop->requestedHandleTypes == CU_MEM_HANDLE_TYPE_FABRIC) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  capstan::standin::WatchAllocator();
  static_assert(sizeof(*handle) == sizeof(uint64_t));
  return capstan::standin::Driver(capstan::standin::CreateMemory(
      prop->location.id, static_cast<int64_t>(bytes),
      reinterpret_cast<uint64_t*>(handle)));
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  return capstan::standin::Driver(capstan::standin::ReleaseMemory(handle));
}

CUresult cuMemMap(CUdeviceptr begin, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long) {
  if (offset != 0) return CUDA_ERROR_NOT_SUPPORTED;
  return capstan::standin::Driver(capstan::standin::MapMemory(
      reinterpret_cast<void*>(begin), static_cast<int64_t>(bytes), handle));
}

CUresult cuMemUnmap(CUdeviceptr begin, size_t bytes) {
  return capstan::standin::Driver(capstan::standin::UnmapMemory(
      reinterpret_cast<void*>(begin), static_cast<int64_t>(bytes)));
}

CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) {
  return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = cudaGetErrorString(static_cast<cudaError_t>(error));
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char** text) {
  *text = cudaGetErrorName(static_cast<cudaError_t>(error));
  return CUDA_SUCCESS;
}

}  // extern "C"
