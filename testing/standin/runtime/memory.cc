// SPDX-License-Identifier: Apache-2.0
#include "testing/standin/runtime/memory.h"

#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "testing/standin/runtime/arena.h"
#include "testing/standin/runtime/graphs.h"
#include "testing/standin/runtime/hooks.h"
#include "testing/standin/runtime/machine.h"
#include "testing/standin/runtime/properties.h"
#include "testing/standin/runtime/report.h"
#include "testing/standin/runtime/settings.h"

namespace capstan::standin {
namespace {

// Freed addresses should come again late, and a program may reserve addresses
// for all memory several times: more of them than memory. Not on paper, where
// devices have as much memory as anybody asks for, and map none.
int64_t AddressesPerByte() { return TheSettings().paper ? 4 : 16; }
constexpr int64_t kPinnedBytes = int64_t{1} << 38;
constexpr int kMostDevices = 16;

struct Memories {
  std::mutex mutex;  // taken after the machine's
  std::atomic<Arena*> devices[kMostDevices] = {};
  std::atomic<Arena*> pinned{nullptr};
  std::map<uintptr_t, std::pair<int64_t, int>> registered;  // bytes, device
  std::map<uintptr_t, int> pinned_devices;  // current when it was made
  std::map<uint64_t, std::pair<int64_t, int>> created;  // bytes, device
  uint64_t last_created = 0;
};

Memories& TheMemories() {
  static Memories* const memories = new Memories;
  return *memories;
}

Arena* DeviceArena(int device) {  // with the mutex held
  Memories& memories = TheMemories();
  Arena* arena = memories.devices[device];
  if (arena == nullptr) {
    arena = new Arena(AddressesPerByte() * DeviceMemory(),
                      DeviceMemory() - TheSettings().occupied, PROT_NONE);
    memories.devices[device] = arena;
    WatchHostAccess();
  }
  return arena;
}

Arena* PinnedArena() {
  Memories& memories = TheMemories();
  if (memories.pinned == nullptr) {
    memories.pinned =
        new Arena(kPinnedBytes, kPinnedBytes, PROT_READ | PROT_WRITE);
    WatchHostAccess();
  }
  return memories.pinned;
}

// The device's arena that p lies in, and its number; null: none.
Arena* ArenaOf(const void* p, int* device) {
  for (int i = 0; i < kMostDevices; ++i) {
    Arena* const arena = TheMemories().devices[i];
    if (arena != nullptr && arena->Contains(p)) {
      *device = i;
      return arena;
    }
  }
  return nullptr;
}

std::string Hex(const void* p) {
  char text[32];
  std::snprintf(text, sizeof(text), "%p", p);
  return text;
}

}  // namespace

bool OnDevice(const void* p) {
  int device = 0;
  return ArenaOf(p, &device) != nullptr;
}

bool IsPinned(const void* p) {
  Arena* const pinned = TheMemories().pinned;
  return pinned != nullptr && pinned->Contains(p);
}

void* HostView(const void* p) {
  int device = 0;
  if (const Arena* const arena = ArenaOf(p, &device)) return arena->View(p);
  if (IsPinned(p)) return TheMemories().pinned.load()->View(p);
  return const_cast<void*>(p);
}

bool OnPaper() { return TheSettings().paper; }

Place PlaceOf(const void* p) {
  Memories& memories = TheMemories();
  Place place;
  std::lock_guard lock(memories.mutex);
  if (Arena* const arena = ArenaOf(p, &place.device)) {
    place.memory = Memory::kDevice;
    arena->Find(p, &place.begin, &place.bytes);
    return place;
  }
  if (IsPinned(p)) {
    place.memory = Memory::kPinned;
    if (memories.pinned.load()->Find(p, &place.begin, &place.bytes)) {
      place.device = memories.pinned_devices[place.begin];
    } else {
      place.memory = Memory::kPageable;
    }
    return place;
  }
  const auto at = reinterpret_cast<uintptr_t>(p);
  auto next = memories.registered.upper_bound(at);
  if (next != memories.registered.begin()) {
    --next;
    if (at < next->first + static_cast<uint64_t>(next->second.first)) {
      place.memory = Memory::kRegistered;
      place.begin = next->first;
      place.bytes = next->second.first;
      place.device = next->second.second;
    }
  }
  return place;
}

std::string Describe(const void* p) {
  const Place place = PlaceOf(p);
  const std::string of = place.memory == Memory::kDevice
                             ? "device " + std::to_string(place.device)
                             : "pinned memory";
  if (place.begin == 0) return Hex(p) + ", in no allocation of " + of;
  const auto offset =
      static_cast<int64_t>(reinterpret_cast<uintptr_t>(p) - place.begin);
  return Hex(p) + ", byte " + std::to_string(offset) + " of the " +
         std::to_string(place.bytes) + " allocated at " +
         Hex(reinterpret_cast<const void*>(place.begin)) + " of " + of;
}

std::string Outside(const Span& span) {
  if (span.bytes <= 0 || span.begin == nullptr || !OnDevice(span.begin)) {
    return "";
  }
  const Place place = PlaceOf(span.begin);
  const auto begin = reinterpret_cast<uintptr_t>(span.begin);
  if (place.begin != 0 &&
      begin + static_cast<uint64_t>(span.bytes) <=
          place.begin + static_cast<uint64_t>(place.bytes)) {
    return "";
  }
  return std::to_string(span.bytes) + " bytes from " + Describe(span.begin);
}

void Poison(const void* begin, int64_t bytes) {
  if (!TheSettings().paper) std::memset(HostView(begin), 0xff, bytes);
}

namespace {

cudaError_t Malloc(void** result, size_t bytes) {
  if (const cudaError_t unsafe = UnsafeCall()) return unsafe;
  if (result == nullptr) return cudaErrorInvalidValue;
  *result = nullptr;
  if (bytes == 0) return cudaSuccess;
  Memories& memories = TheMemories();
  {
    std::lock_guard lock(memories.mutex);
    if (IsFault("malloc")) {
      ReportFault("malloc");
      return cudaErrorMemoryAllocation;
    }
    Arena* const arena = DeviceArena(CurrentDevice());
    *result = arena->Allocate(static_cast<int64_t>(bytes));
  }
  if (*result == nullptr) return cudaErrorMemoryAllocation;
  Poison(*result, static_cast<int64_t>(bytes));
  NoteMalloc(static_cast<int64_t>(bytes));
  NoteReserved(static_cast<int64_t>(bytes));
  return cudaSuccess;
}

cudaError_t Free(void* p) {
  if (p == nullptr) return cudaSuccess;
  if (const cudaError_t unsafe = UnsafeCall()) return unsafe;
  const Place place = PlaceOf(p);
  if (place.memory != Memory::kDevice ||
      place.begin != reinterpret_cast<uintptr_t>(p)) {
    return cudaErrorInvalidValue;
  }
  if (const cudaError_t lost = WaitForDevice(place.device, "free")) return lost;
  ForgetAccesses(place.begin, place.begin + place.bytes);
  {
    std::lock_guard lock(TheMemories().mutex);
    DeviceArena(place.device)->Free(p);
  }
  NoteFree(place.bytes);
  NoteReserved(-place.bytes);
  return cudaSuccess;
}

cudaError_t HostAlloc(void** result, size_t bytes) {
  if (const cudaError_t unsafe = UnsafeCall()) return unsafe;
  if (result == nullptr) return cudaErrorInvalidValue;
  *result = nullptr;
  if (bytes == 0) return cudaSuccess;
  std::lock_guard lock(TheMemories().mutex);
  *result = PinnedArena()->Allocate(static_cast<int64_t>(bytes));
  if (*result == nullptr) return cudaErrorMemoryAllocation;
  TheMemories().pinned_devices[reinterpret_cast<uintptr_t>(*result)] =
      CurrentDevice();
  return cudaSuccess;
}

cudaError_t FreeHost(void* p) {
  if (p == nullptr) return cudaSuccess;
  if (const cudaError_t unsafe = UnsafeCall()) return unsafe;
  const Place place = PlaceOf(p);
  if (place.memory != Memory::kPinned ||
      place.begin != reinterpret_cast<uintptr_t>(p)) {
    return cudaErrorInvalidValue;
  }
  if (const cudaError_t lost = WaitForDevice(-1, "host_free")) return lost;
  ForgetAccesses(place.begin, place.begin + place.bytes);
  std::lock_guard lock(TheMemories().mutex);
  TheMemories().pinned_devices.erase(place.begin);
  TheMemories().pinned.load()->Free(p);
  return cudaSuccess;
}

cudaError_t Register(void* p, size_t bytes) {
  if (p == nullptr || bytes == 0) return cudaErrorInvalidValue;
  if (PlaceOf(p).memory != Memory::kPageable) {
    return cudaErrorHostMemoryAlreadyRegistered;
  }
  std::lock_guard lock(TheMemories().mutex);
  TheMemories().registered[reinterpret_cast<uintptr_t>(p)] = {
      static_cast<int64_t>(bytes), CurrentDevice()};
  return cudaSuccess;
}

cudaError_t Unregister(void* p) {
  const auto at = reinterpret_cast<uintptr_t>(p);
  {
    std::lock_guard lock(TheMemories().mutex);
    if (TheMemories().registered.count(at) == 0) {
      return cudaErrorHostMemoryNotRegistered;
    }
  }
  if (const cudaError_t lost = WaitForDevice(-1, "host_free")) return lost;
  int64_t bytes = 0;
  {
    std::lock_guard lock(TheMemories().mutex);
    bytes = TheMemories().registered[at].first;
    TheMemories().registered.erase(at);
  }
  ForgetAccesses(at, at + bytes);
  return cudaSuccess;
}

cudaError_t Attributes(cudaPointerAttributes* result, const void* p) {
  if (result == nullptr) return cudaErrorInvalidValue;
  std::memset(result, 0, sizeof(*result));
  const Place place = PlaceOf(p);
  result->device = place.device;
  switch (place.memory) {
    case Memory::kDevice:
      if (place.begin == 0) {
        result->type = cudaMemoryTypeUnregistered;
        break;
      }
      result->type = cudaMemoryTypeDevice;
      result->devicePointer = const_cast<void*>(p);
      break;
    case Memory::kPinned:
    case Memory::kRegistered:
      result->type = cudaMemoryTypeHost;
      result->devicePointer = const_cast<void*>(p);
      result->hostPointer = const_cast<void*>(p);
      break;
    case Memory::kPageable:
      result->type = cudaMemoryTypeUnregistered;
      result->device = cudaInvalidDeviceId;
      result->hostPointer = const_cast<void*>(p);
      break;
  }
  return cudaSuccess;
}

cudaError_t MemInfo(size_t* free_bytes, size_t* total) {
  std::lock_guard lock(TheMemories().mutex);
  const Arena* const arena = DeviceArena(CurrentDevice());
  *free_bytes = static_cast<size_t>(arena->limit() - arena->used());
  *total = static_cast<size_t>(arena->limit());
  return cudaSuccess;
}

}  // namespace

cudaError_t ReserveAddresses(int64_t bytes, void** begin) {
  std::lock_guard lock(TheMemories().mutex);
  *begin = DeviceArena(CurrentDevice())->Reserve(bytes);
  return *begin == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}

cudaError_t FreeAddresses(void* begin) {
  std::lock_guard lock(TheMemories().mutex);
  int device = 0;
  Arena* const arena = ArenaOf(begin, &device);
  return arena != nullptr && arena->Unreserve(begin) ? cudaSuccess
                                                     : cudaErrorInvalidValue;
}

cudaError_t CreateMemory(int device, int64_t bytes, uint64_t* handle) {
  {
    std::lock_guard lock(TheMemories().mutex);
    if (IsFault("malloc")) {
      ReportFault("malloc");
      return cudaErrorMemoryAllocation;
    }
    if (!DeviceArena(device)->Use(bytes)) return cudaErrorMemoryAllocation;
    *handle = ++TheMemories().last_created;
    TheMemories().created[*handle] = {bytes, device};
  }
  NoteMalloc(bytes);
  NoteReserved(bytes);
  return cudaSuccess;
}

cudaError_t ReleaseMemory(uint64_t handle) {
  int64_t bytes = 0;
  {
    std::lock_guard lock(TheMemories().mutex);
    const auto found = TheMemories().created.find(handle);
    if (found == TheMemories().created.end()) return cudaErrorInvalidValue;
    bytes = found->second.first;
    DeviceArena(found->second.second)->Use(-bytes);
    TheMemories().created.erase(found);
  }
  NoteFree(bytes);
  NoteReserved(-bytes);
  return cudaSuccess;
}

cudaError_t MapMemory(void* begin, int64_t bytes, uint64_t handle) {
  {
    std::lock_guard lock(TheMemories().mutex);
    const auto found = TheMemories().created.find(handle);
    int device = 0;
    Arena* const arena = ArenaOf(begin, &device);
    if (found == TheMemories().created.end() ||
        found->second != std::make_pair(bytes, device) || arena == nullptr ||
        !arena->Map(begin, bytes)) {
      return cudaErrorInvalidValue;
    }
  }
  NoteMapped(bytes);
  Poison(begin, bytes);
  return cudaSuccess;
}

// Like cudaFree, but without a wait: works that still use it are caught.
cudaError_t UnmapMemory(void* begin, int64_t bytes) {
  {
    std::lock_guard lock(TheMemories().mutex);
    int device = 0;
    Arena* const arena = ArenaOf(begin, &device);
    if (arena == nullptr || !arena->Unmap(begin, bytes)) {
      return cudaErrorInvalidValue;
    }
  }
  NoteMapped(-bytes);
  const auto at = reinterpret_cast<uintptr_t>(begin);
  ForgetAccesses(at, at + bytes);
  return cudaSuccess;
}

}  // namespace capstan::standin

extern "C" {

using capstan::standin::Begin;
using capstan::standin::Result;

cudaError_t cudaMalloc(void** result, size_t bytes) {
  if (const cudaError_t error = Begin()) return error;
  capstan::standin::WatchAllocator();
  return Result(capstan::standin::Malloc(result, bytes));
}

cudaError_t cudaFree(void* p) {
  if (const cudaError_t error = Begin()) return error;
  return Result(capstan::standin::Free(p));
}

cudaError_t cudaHostAlloc(void** result, size_t bytes, unsigned) {
  if (const cudaError_t error = Begin()) return error;
  return Result(capstan::standin::HostAlloc(result, bytes));
}

cudaError_t cudaMallocHost(void** result, size_t bytes) {
  return cudaHostAlloc(result, bytes, 0);
}

cudaError_t cudaFreeHost(void* p) {
  if (const cudaError_t error = Begin()) return error;
  return Result(capstan::standin::FreeHost(p));
}

cudaError_t cudaHostRegister(void* p, size_t bytes, unsigned) {
  if (const cudaError_t error = Begin()) return error;
  return Result(capstan::standin::Register(p, bytes));
}

cudaError_t cudaHostUnregister(void* p) {
  if (const cudaError_t error = Begin()) return error;
  return Result(capstan::standin::Unregister(p));
}

cudaError_t cudaHostGetDevicePointer(void** result, void* p, unsigned) {
  *result = p;
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* result,
                                     const void* p) {
  if (const cudaError_t error = Begin()) return error;
  return Result(capstan::standin::Attributes(result, p));
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  if (const cudaError_t error = Begin()) return error;
  return Result(capstan::standin::MemInfo(free_bytes, total));
}

}  // extern "C"
