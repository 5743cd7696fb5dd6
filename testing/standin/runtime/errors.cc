// SPDX-License-Identifier: Apache-2.0
//
// Errors: the last one of each thread, and the one that a lost device returns
// from each call.
#include <pthread.h>

#include <atomic>

#include "testing/standin/runtime/hooks.h"
#include "testing/standin/runtime/machine.h"
#include "testing/standin/runtime/report.h"

namespace capstan::standin {
namespace {

thread_local cudaError_t last_error = cudaSuccess;
std::atomic<int> lost{cudaSuccess};
std::atomic<bool> used{false};
std::atomic<bool> forked{false};  // the parent had used CUDA

struct Named {
  cudaError_t error;
  const char* name;
  const char* text;
};

// As cudaGetErrorString has them.
const Named kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError",
     "initialization error"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection",
     "invalid copy direction for memcpy"},
    {cudaErrorNoDevice, "cudaErrorNoDevice",
     "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice",
     "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle",
     "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorSymbolNotFound, "cudaErrorSymbolNotFound",
     "named symbol not found"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure",
     "unspecified launch failure"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorAssert, "cudaErrorAssert", "device-side assert triggered"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction",
     "invalid device function"},
    {cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled",
     "peer access is already enabled"},
    {cudaErrorHostMemoryAlreadyRegistered,
     "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {cudaErrorNotPermitted, "cudaErrorNotPermitted", "operation not permitted"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureMerge, "cudaErrorStreamCaptureMerge",
     "operation would result in a merge of separate capture sequences"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched",
     "capture was not ended in the same stream as it began"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined",
     "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking "
     "stream"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
    {cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread",
     "attempt to terminate a thread-local capture sequence from another "
     "thread"},
};

const Named& NameOf(cudaError_t error) {
  static const Named unknown = {cudaErrorUnknown, "cudaErrorUnknown",
                                "unknown error"};
  for (const Named& named : kErrors) {
    if (named.error == error) return named;
  }
  return unknown;
}

}  // namespace

cudaError_t Result(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

cudaError_t LostWith() { return static_cast<cudaError_t>(lost.load()); }

void LoseDevice(cudaError_t error) {
  int expected = cudaSuccess;
  lost.compare_exchange_strong(expected, error);
}

cudaError_t BeginThoughLost() {
  if (forked) {
    ReportOnce("fork", "",
               "a process uses CUDA that was forked by one that had used it");
    return Result(cudaErrorInitializationError);
  }
  if (!used.load(std::memory_order_relaxed) && !used.exchange(true)) {
    pthread_atfork(nullptr, nullptr, [] { forked = true; });
  }
  LoadOperators();
  return cudaSuccess;
}

cudaError_t Begin() {
  if (const cudaError_t error = BeginThoughLost()) return error;
  return Result(LostWith());
}

Machine& TheMachine() {
  static Machine* const machine = new Machine;
  return *machine;
}

}  // namespace capstan::standin

extern "C" {

cudaError_t cudaGetLastError() {
  using namespace capstan::standin;
  const cudaError_t error = LostWith() != cudaSuccess ? LostWith() : last_error;
  last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError() {
  using namespace capstan::standin;
  return LostWith() != cudaSuccess ? LostWith() : last_error;
}

const char* cudaGetErrorString(cudaError_t error) {
  return capstan::standin::NameOf(error).text;
}

const char* cudaGetErrorName(cudaError_t error) {
  return capstan::standin::NameOf(error).name;
}

}  // extern "C"
