// SPDX-License-Identifier: Apache-2.0
//
// Devices: how many, which is current, what they are.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <set>

#include "testing/standin/runtime/graphs.h"
#include "testing/standin/runtime/machine.h"
#include "testing/standin/runtime/memory.h"
#include "testing/standin/runtime/properties.h"
#include "testing/standin/runtime/report.h"

namespace capstan::standin {
namespace {

thread_local int current_device = 0;
std::atomic<int> last_set{0};
std::atomic<uint32_t> contexts{0};  // a bit for each device

std::set<std::pair<int, int>>& Peers() {  // under the machine's mutex
  static auto* const peers = new std::set<std::pair<int, int>>;
  return *peers;
}

bool Exists(int device) {
  return device >= 0 && device < static_cast<int>(VisibleDevices().size());
}

void Fill(cudaDeviceProp* p, int device) {
  const Card& card = TheCard();
  const int number = VisibleDevices()[device];
  std::memset(p, 0, sizeof(*p));
  std::snprintf(p->name, sizeof(p->name), "%s", card.name);
  std::memcpy(&p->uuid, UuidOf(number).data(), 16);
  p->totalGlobalMem = static_cast<size_t>(DeviceMemory());
  p->sharedMemPerBlock = 49152;
  p->regsPerBlock = 65536;
  p->warpSize = 32;
  p->memPitch = 2147483647;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->totalConstMem = 65536;
  p->major = card.major;
  p->minor = card.minor;
  p->textureAlignment = 512;
  p->multiProcessorCount = card.multiprocessors;
  p->canMapHostMemory = 1;
  p->concurrentKernels = 1;
  p->ECCEnabled = 1;
  p->pciBusID = number + 1;
  p->asyncEngineCount = 3;
  p->unifiedAddressing = 1;
  p->memoryBusWidth = card.memory_bus_bits;
  p->l2CacheSize = static_cast<int>(card.l2);
  p->maxThreadsPerMultiProcessor = card.threads_per_sm;
  p->streamPrioritiesSupported = 1;
  p->globalL1CacheSupported = 1;
  p->localL1CacheSupported = 1;
  p->sharedMemPerMultiprocessor = static_cast<size_t>(card.shared_per_sm);
  p->regsPerMultiprocessor = 65536;
  p->computePreemptionSupported = 1;
  p->canUseHostPointerForRegisteredMem = 1;
  p->cooperativeLaunch = 1;
  p->sharedMemPerBlockOptin = static_cast<size_t>(card.shared_optin);
  p->maxBlocksPerMultiProcessor = 32;
  p->reservedSharedMemPerBlock = 1024;
  p->hostRegisterSupported = 1;
  p->clusterLaunch = card.major >= 9 ? 1 : 0;
}

cudaError_t EnablePeer(int peer) {
  if (!Exists(peer) || peer == CurrentDevice()) return cudaErrorInvalidDevice;
  Lock lock(TheMachine().mutex);
  return Peers().emplace(CurrentDevice(), peer).second
             ? cudaSuccess
             : cudaErrorPeerAccessAlreadyEnabled;
}

}  // namespace

int CurrentDevice() { return current_device; }

int LastDeviceSet() { return last_set; }

bool HasContext(int device) { return (contexts >> device & 1) != 0; }

}  // namespace capstan::standin

extern "C" {

using capstan::standin::Begin;
using capstan::standin::Exists;
using capstan::standin::Result;

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  if (const cudaError_t error = capstan::standin::BeginThoughLost()) {
    return error;
  }
  *count = static_cast<int>(capstan::standin::VisibleDevices().size());
  return *count == 0 ? Result(cudaErrorNoDevice) : cudaSuccess;
}

// Says nothing of a lost device: LibTorch asks from destructors, which would
// end the process, as no failed kernel does on a real one.
cudaError_t cudaGetDevice(int* device) {
  if (const cudaError_t error = capstan::standin::BeginThoughLost()) {
    return error;
  }
  *device = capstan::standin::current_device;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (const cudaError_t error = Begin()) return error;
  if (!Exists(device)) return Result(cudaErrorInvalidDevice);
  capstan::standin::current_device = device;
  capstan::standin::last_set = device;
  capstan::standin::contexts |= 1u << device;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (const cudaError_t error = Begin()) return error;
  if (!Exists(device)) return Result(cudaErrorInvalidDevice);
  capstan::standin::Fill(properties, device);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute,
                                   int device) {
  if (const cudaError_t error = Begin()) return error;
  if (!Exists(device)) return Result(cudaErrorInvalidDevice);
  *value = capstan::standin::DeviceAttribute(
      attribute, capstan::standin::VisibleDevices()[device]);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  if (const cudaError_t error = Begin()) return error;
  if (!Exists(device)) return Result(cudaErrorInvalidDevice);
  std::snprintf(
      id, static_cast<size_t>(length), "%s",
      capstan::standin::PciBusId(capstan::standin::VisibleDevices()[device])
          .c_str());
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (const cudaError_t error = Begin()) return error;
  if (!Exists(device) || !Exists(peer)) return Result(cudaErrorInvalidDevice);
  *can = device == peer ? 0 : 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  if (const cudaError_t error = Begin()) return error;
  return Result(capstan::standin::EnablePeer(peer));
}

// Memory pools and memory of other processes: not here.
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t*, int) {
  return Result(cudaErrorNotSupported);
}
cudaError_t cudaMallocAsync(void**, size_t, cudaStream_t) {
  return Result(cudaErrorNotSupported);
}
cudaError_t cudaFreeAsync(void*, cudaStream_t) {
  return Result(cudaErrorNotSupported);
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) {
  return Result(cudaErrorNotSupported);
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) {
  return Result(cudaErrorNotSupported);
}
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t, const cudaMemAccessDesc*,
                                 size_t) {
  return Result(cudaErrorNotSupported);
}
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) {
  return Result(cudaErrorNotSupported);
}
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t*, void*) {
  return Result(cudaErrorNotSupported);
}
cudaError_t cudaIpcOpenMemHandle(void**, cudaIpcMemHandle_t, unsigned) {
  return Result(cudaErrorNotSupported);
}
cudaError_t cudaIpcCloseMemHandle(void*) {
  return Result(cudaErrorNotSupported);
}

}  // extern "C"
