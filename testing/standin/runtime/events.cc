// SPDX-License-Identifier: Apache-2.0
//
// Events: places in streams, which other streams and the host wait for.
#include <algorithm>
#include <map>

#include "testing/standin/runtime/graphs.h"
#include "testing/standin/runtime/machine.h"
#include "testing/standin/runtime/report.h"

namespace capstan::standin {
namespace {

struct Events {
  std::map<Event*, int64_t> numbers;  // of those that exist; in the trace
  int64_t created = 0;
};

Events& TheEvents() {  // under the machine's mutex
  static Events* const events = new Events;
  return *events;
}

// Null if the handle is none. *number: its name in the trace.
Event* Find(cudaEvent_t handle, int64_t* number) {
  const auto found = TheEvents().numbers.find(reinterpret_cast<Event*>(handle));
  if (found == TheEvents().numbers.end()) return nullptr;
  *number = found->second;
  return found->first;
}

cudaError_t Create(cudaEvent_t* result, unsigned flags) {
  if (result == nullptr) return cudaErrorInvalidValue;
  Machine& machine = TheMachine();
  Lock lock(machine.mutex);
  auto* const event = new Event;
  event->flags = flags;
  event->device = CurrentDevice();
  TheEvents().numbers[event] = ++TheEvents().created;
  *result = reinterpret_cast<cudaEvent_t>(event);
  return cudaSuccess;
}

cudaError_t Destroy(cudaEvent_t handle) {
  Machine& machine = TheMachine();
  Lock lock(machine.mutex);
  int64_t number = 0;
  Event* const event = Find(handle, &number);
  if (event == nullptr) return cudaErrorInvalidResourceHandle;
  TheEvents().numbers.erase(event);
  delete event;  // its record lives on where it is waited for
  return cudaSuccess;
}

cudaError_t DoRecord(cudaEvent_t handle, cudaStream_t stream_handle) {
  Machine& machine = TheMachine();
  Lock lock(machine.mutex);
  int64_t number = 0;
  Event* const event = Find(handle, &number);
  Stream* const stream = FindStream(&machine, stream_handle);
  if (event == nullptr || stream == nullptr) {
    return cudaErrorInvalidResourceHandle;
  }
  // CUDA wants both on one device.
  if (event->device != stream->device) return cudaErrorInvalidResourceHandle;
  if (stream->capture != nullptr) {
    if (!stream->capture->valid) return cudaErrorStreamCaptureInvalidated;
    event->capture = stream->capture;
    event->frontier = stream->frontier;
    event->capture_clock = stream->capture_clock;
    return cudaSuccess;
  }
  event->capture = nullptr;
  OrderWithLegacy(&machine, stream);
  NoteRecord(number, stream->id);
  event->record = Mark(&machine, stream);
  AfterEnqueue(&machine, &lock);
  return cudaSuccess;
}

// The stream waits for an event of a capture, and joins that capture.
cudaError_t JoinCapture(Stream* stream, const Event& event) {
  const auto& capture = event.capture;
  if (!capture->valid) return cudaErrorStreamCaptureInvalidated;
  if (stream->capture == nullptr) {
    stream->capture = capture;
    stream->frontier.clear();
    stream->capture_clock.clear();
    capture->streams.push_back(stream);
  } else if (stream->capture != capture) {
    stream->capture->valid = false;
    capture->valid = false;
    return cudaErrorStreamCaptureMerge;
  }
  for (const int node : event.frontier) {
    auto& frontier = stream->frontier;
    if (std::find(frontier.begin(), frontier.end(), node) == frontier.end()) {
      frontier.push_back(node);
    }
  }
  Join(event.capture_clock, &stream->capture_clock);
  return cudaSuccess;
}

cudaError_t StreamWait(cudaStream_t stream_handle, cudaEvent_t handle) {
  Machine& machine = TheMachine();
  Lock lock(machine.mutex);
  int64_t number = 0;
  Event* const event = Find(handle, &number);
  Stream* const stream = FindStream(&machine, stream_handle);
  if (event == nullptr || stream == nullptr) {
    return cudaErrorInvalidResourceHandle;
  }
  if (event->capture != nullptr) return JoinCapture(stream, *event);
  if (stream->capture != nullptr) {
    stream->capture->valid = false;
    return cudaErrorStreamCaptureIsolation;
  }
  if (event->record == nullptr) return cudaSuccess;
  OrderWithLegacy(&machine, stream);
  NoteWaitEvent(number, stream->id);
  WaitInStream(&machine, stream, event->record);
  AfterEnqueue(&machine, &lock);
  return cudaSuccess;
}

// The host asks for a record that isn't done. If it has done so this often
// without enqueueing anything, it does in a loop.
void NoteQuery(const Machine& machine, Record* record) {
  constexpr int kLoop = 8;
  record->asked_again =
      record->asked == machine.works ? record->asked_again + 1 : 0;
  record->asked = machine.works;
  if (record->asked_again < kLoop) return;
  NotePoll(static_cast<int64_t>(machine.works - record->works),
           /*first=*/record->asked_again == kLoop);
}

cudaError_t Query(cudaEvent_t handle) {
  {
    Lock lock(TheMachine().mutex);
    int64_t number = 0;
    const Event* const event = Find(handle, &number);
    if (event == nullptr) return cudaErrorInvalidResourceHandle;
    if (event->capture != nullptr) {
      event->capture->valid = false;
      return cudaErrorCapturedEvent;
    }
  }
  if (const cudaError_t unsafe = UnsafeCall()) return unsafe;
  Machine& machine = TheMachine();
  Lock lock(machine.mutex);
  int64_t number = 0;
  const Event* const event = Find(handle, &number);
  if (event == nullptr) return cudaErrorInvalidResourceHandle;
  if (event->record == nullptr) return cudaSuccess;
  if (!event->record->done) {
    NoteQuery(machine, event->record.get());
    return cudaErrorNotReady;
  }
  // The host knows now what the device has done.
  Join(event->record->clock, &machine.host);
  return LostWith();
}

cudaError_t Synchronize(cudaEvent_t handle) {
  if (const cudaError_t unsafe = UnsafeCall()) return unsafe;
  Machine& machine = TheMachine();
  Lock lock(machine.mutex);
  int64_t number = 0;
  const Event* const event = Find(handle, &number);
  if (event == nullptr) return cudaErrorInvalidResourceHandle;
  if (event->capture != nullptr) {
    event->capture->valid = false;
    return cudaErrorCapturedEvent;
  }
  const auto record = event->record;
  NoteHostWait("event_synchronize", "event", number,
               record == nullptr
                   ? 0
                   : static_cast<int64_t>(machine.works - record->works));
  if (record == nullptr) return cudaSuccess;
  return HostWait(&machine, &lock, *record);
}

cudaError_t Elapsed(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  Machine& machine = TheMachine();
  Lock lock(machine.mutex);
  int64_t number = 0;
  const Event* const first = Find(from, &number);
  const Event* const last = Find(to, &number);
  if (first == nullptr || last == nullptr || first->record == nullptr ||
      last->record == nullptr ||
      ((first->flags | last->flags) & cudaEventDisableTiming) != 0) {
    return cudaErrorInvalidResourceHandle;
  }
  if (!first->record->done || !last->record->done) return cudaErrorNotReady;
  *milliseconds =
      static_cast<float>(1e-6 * static_cast<double>(last->record->done_ns -
                                                    first->record->done_ns));
  return cudaSuccess;
}

}  // namespace
}  // namespace capstan::standin

extern "C" {

using capstan::standin::Begin;
using capstan::standin::Result;

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if (const cudaError_t error = Begin()) return error;
  return Result(capstan::standin::Create(event, flags));
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (const cudaError_t error = Begin()) return error;
  return Result(capstan::standin::Destroy(event));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (const cudaError_t error = Begin()) return error;
  return Result(capstan::standin::DoRecord(event, stream));
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream,
                                     unsigned) {
  return cudaEventRecord(event, stream);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                unsigned) {
  if (const cudaError_t error = Begin()) return error;
  return Result(capstan::standin::StreamWait(stream, event));
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (const cudaError_t error = Begin()) return error;
  return Result(capstan::standin::Query(event));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (const cudaError_t error = Begin()) return error;
  return Result(capstan::standin::Synchronize(event));
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from,
                                 cudaEvent_t to) {
  if (const cudaError_t error = Begin()) return error;
  return Result(capstan::standin::Elapsed(milliseconds, from, to));
}

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t*, cudaEvent_t) {
  return Result(cudaErrorNotSupported);
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t*, cudaIpcEventHandle_t) {
  return Result(cudaErrorNotSupported);
}

}  // extern "C"
