// SPDX-License-Identifier: Apache-2.0
//
// Memory of devices and pinned memory of the host.
#ifndef CAPSTAN_TESTING_STANDIN_RUNTIME_MEMORY_H_
#define CAPSTAN_TESTING_STANDIN_RUNTIME_MEMORY_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "testing/standin/device.h"

namespace capstan::standin {

enum class Memory { kPageable, kPinned, kRegistered, kDevice };

struct Place {
  Memory memory = Memory::kPageable;
  int device = 0;       // among the visible ones; of pinned memory: current
                        // when it was made
  uintptr_t begin = 0;  // of the allocation that it lies in; 0: in none
  int64_t bytes = 0;
};

// Where p lies. Thread-safe.
Place PlaceOf(const void* p);

// "byte 128 of the 4096 that were allocated at 0x.. on device 0".
std::string Describe(const void* p);

// An error in words if a work may not touch the span (memory of a device in no
// allocation, or beyond its end); else "".
std::string Outside(const Span& span);

// Fills with 0xff, which is NaN in every floating-point type.
void Poison(const void* begin, int64_t bytes);

// Works that have been enqueued and touch pinned memory: until they are done,
// the host's accesses to it fault (host_access.cc).
// `key` tells works apart.
void Protect(const Work& work, int stream, const void* key);
void Unprotect(const Work& work, const void* key);

// For the handler of the fault: what pending work forbids the access at p;
// "" if none. In any case accesses to p's page fault no more.
std::string PendingAt(const void* p, bool write);

bool IsPinned(const void* p);

// What the driver does with addresses and memory apart (cuMemAddressReserve,
// cuMemCreate, ..). Addresses are the current device's; memory mapped side by
// side is one allocation. Memory counts as a call of cudaMalloc does. Unlike
// that, a capture allows all of it.
cudaError_t ReserveAddresses(int64_t bytes, void** begin);
cudaError_t FreeAddresses(void* begin);
cudaError_t CreateMemory(int device, int64_t bytes, uint64_t* handle);
cudaError_t ReleaseMemory(uint64_t handle);
cudaError_t MapMemory(void* begin, int64_t bytes, uint64_t handle);
cudaError_t UnmapMemory(void* begin, int64_t bytes);

}  // namespace capstan::standin

#endif  // CAPSTAN_TESTING_STANDIN_RUNTIME_MEMORY_H_
