// SPDX-License-Identifier: Apache-2.0
//
// What the runtime starts in a process when it is first used.
#ifndef CAPSTAN_TESTING_STANDIN_RUNTIME_HOOKS_H_
#define CAPSTAN_TESTING_STANDIN_RUNTIME_HOOKS_H_

namespace capstan::standin {

// Opens libcapstan_standin_operators.so beside this library, once libtorch_cuda
// is in the process.
void LoadOperators();

// Has LibTorch's caching allocator tell about its blocks (allocator_watch.cc),
// once it can.
void WatchAllocator();

// Reports accesses of host code to a device's memory (host_access.cc).
void WatchHostAccess();

}  // namespace capstan::standin

#endif  // CAPSTAN_TESTING_STANDIN_RUNTIME_HOOKS_H_
