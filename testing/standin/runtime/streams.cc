// SPDX-License-Identifier: Apache-2.0
//
// Streams, and what is appended to them.
#include <algorithm>

#include "testing/standin/runtime/graphs.h"
#include "testing/standin/runtime/machine.h"
#include "testing/standin/runtime/memory.h"
#include "testing/standin/runtime/properties.h"
#include "testing/standin/runtime/race_report.h"
#include "testing/standin/runtime/report.h"

namespace capstan::standin {
namespace {

constexpr int kLeastPriority = 0;
constexpr int kGreatestPriority = -5;

void MakeLegacyStreams(Machine* machine) {
  if (!machine->legacy.empty()) return;
  const int count = static_cast<int>(VisibleDevices().size());
  for (int device = 0; device < count; ++device) {
    machine->legacy.push_back(NewStream(machine, device, 0, 0));
    machine->legacy.back()->legacy = true;
  }
}

// While a stream that is ordered with it is captured, the legacy stream may not
// be used.
cudaError_t RefuseImplicit(Machine* machine, const Stream* stream) {
  if (!stream->legacy) return cudaSuccess;
  for (const auto& other : machine->streams) {
    if (other->capture != nullptr && other->blocking &&
        other->device == stream->device) {
      other->capture->valid = false;
      return cudaErrorStreamCaptureImplicit;
    }
  }
  return cudaSuccess;
}

}  // namespace

Stream* NewStream(Machine* machine, int device, unsigned flags, int priority) {
  auto stream = std::make_unique<Stream>();
  stream->device = device;
  stream->flags = flags;
  stream->blocking = (flags & cudaStreamNonBlocking) == 0;
  stream->priority = priority;
  stream->place = machine->next_place++;
  for (const auto& other : machine->streams) {
    if (other->device == device) ++stream->id;
  }
  machine->streams.push_back(std::move(stream));
  return machine->streams.back().get();
}

Stream* FindStream(Machine* machine, void* handle) {
  MakeLegacyStreams(machine);
  const size_t device = CurrentDevice();
  if (handle == nullptr || handle == cudaStreamLegacy ||
      handle == cudaStreamPerThread) {
    return device < machine->legacy.size() ? machine->legacy[device] : nullptr;
  }
  for (const auto& stream : machine->streams) {
    if (stream.get() == handle) {
      return stream->destroyed ? nullptr : stream.get();
    }
  }
  return nullptr;
}

cudaError_t Submit(Machine* machine, Lock* lock, Stream* stream, Work work,
                   const Copy* copy) {
  if (const cudaError_t error = RefuseImplicit(machine, stream)) return error;
  for (const auto* spans : {&work.reads, &work.writes}) {
    for (const Span& span : *spans) {
      const std::string outside = Outside(span);
      if (outside.empty()) continue;
      ReportOnce("use_after_free", work.name,
                 work.name + " touches " + outside);
      LoseDevice(cudaErrorIllegalAddress);
    }
  }
  if (stream->capture != nullptr) {
    return AddNode(stream, std::move(work), copy != nullptr);
  }
  OrderWithLegacy(machine, stream);
  ++stream->works;
  ++machine->works;
  Join(machine->host, &stream->clock);
  NoteAccesses(machine, stream, work);
  if (copy != nullptr) {
    NoteCopy(copy->direction, copy->bytes, stream->id);
  } else {
    NoteWork(work, stream->id, 0);
  }
  Item item;
  item.fails = copy == nullptr && work.cost.launches > 0 && IsFault("launch");
  item.work = std::move(work);
  Push(machine, stream, std::move(item));
  AfterEnqueue(machine, lock);
  return cudaSuccess;
}

cudaError_t SubmitGraph(Machine* machine, Lock* lock, Stream* stream,
                        const std::shared_ptr<Graph>& graph) {
  if (const cudaError_t error = RefuseImplicit(machine, stream)) return error;
  if (stream->capture != nullptr) {  // no graphs within graphs here
    return UnsupportedWhileCapturing(stream);
  }
  OrderWithLegacy(machine, stream);
  ++stream->works;
  ++machine->works;
  Join(machine->host, &stream->clock);
  NoteGraphLaunch(graph->id, static_cast<int64_t>(graph->nodes.size()),
                  stream->id);
  for (const Node& node : graph->nodes) {
    NoteAccesses(machine, stream, node.work);
    NoteWork(node.work, stream->id, graph->id);
  }
  Item item;
  item.work = WorkOf(graph);
  item.fails = IsFault("launch");
  Push(machine, stream, std::move(item));
  AfterEnqueue(machine, lock);
  return cudaSuccess;
}

int Enqueue(void* handle, Work work) {
  if (const cudaError_t error = Begin()) return error;
  Machine& machine = TheMachine();
  Lock lock(machine.mutex);
  Stream* const stream = FindStream(&machine, handle);
  if (stream == nullptr) return Result(cudaErrorInvalidResourceHandle);
  return Result(Submit(&machine, &lock, stream, std::move(work), nullptr));
}

cudaError_t WaitForStream(void* handle, const char* why) {
  Machine& machine = TheMachine();
  Lock lock(machine.mutex);
  Stream* const stream = FindStream(&machine, handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (const cudaError_t error = UnsupportedWhileCapturing(stream)) return error;
  NoteHostWait(why, "stream", stream->id);
  const auto mark = Mark(&machine, stream);
  return HostWait(&machine, &lock, *mark);
}

cudaError_t WaitForDevice(int device, const char* why) {
  if (const cudaError_t unsafe = UnsafeCall()) return unsafe;
  Machine& machine = TheMachine();
  Lock lock(machine.mutex);
  NoteHostWait(why, "", -1);
  std::vector<std::shared_ptr<Record>> marks;
  for (const auto& stream : machine.streams) {
    if (device >= 0 && stream->device != device) continue;
    if (!stream->items.empty() || !stream->clock.empty()) {
      marks.push_back(Mark(&machine, stream.get()));
    }
  }
  for (const auto& mark : marks) {
    if (const cudaError_t lost = HostWait(&machine, &lock, *mark)) return lost;
  }
  return LostWith();
}

int WaitFor(void* stream, const char* why) {
  if (const cudaError_t error = Begin()) return error;
  return Result(WaitForStream(stream, why));
}

namespace {

cudaError_t Create(cudaStream_t* result, unsigned flags, int priority) {
  Machine& machine = TheMachine();
  Lock lock(machine.mutex);
  if (FindStream(&machine, nullptr) == nullptr) return cudaErrorNoDevice;
  // Out of range means the nearest one.
  priority = std::max(kGreatestPriority, std::min(kLeastPriority, priority));
  *result = reinterpret_cast<cudaStream_t>(
      NewStream(&machine, CurrentDevice(), flags, priority));
  return cudaSuccess;
}

cudaError_t Destroy(cudaStream_t handle) {
  Machine& machine = TheMachine();
  Lock lock(machine.mutex);
  Stream* const stream = FindStream(&machine, handle);
  if (stream == nullptr || stream->legacy) {
    return cudaErrorInvalidResourceHandle;
  }
  stream->destroyed = true;  // what is queued still runs
  return cudaSuccess;
}

cudaError_t Query(cudaStream_t handle) {
  Machine& machine = TheMachine();
  Lock lock(machine.mutex);
  Stream* const stream = FindStream(&machine, handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (const cudaError_t error = UnsupportedWhileCapturing(stream)) return error;
  if (!stream->items.empty()) return cudaErrorNotReady;
  Join(stream->clock, &machine.host);
  return LostWith();
}

template <typename Value, typename Read>
cudaError_t Ask(cudaStream_t handle, Value* result, Read read) {
  Machine& machine = TheMachine();
  Lock lock(machine.mutex);
  const Stream* const stream = FindStream(&machine, handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  *result = read(*stream);
  return cudaSuccess;
}

cudaError_t HostFunction(cudaStream_t handle, const char* name,
                         std::function<void()> function) {
  Work work;
  work.name = name;
  work.cost.launches = 0;
  work.run = [function = std::move(function)] {
    function();
    return Progress::kDone;
  };
  return static_cast<cudaError_t>(Enqueue(handle, std::move(work)));
}

}  // namespace
}  // namespace capstan::standin

extern "C" {

using capstan::standin::Begin;
using capstan::standin::Result;
using capstan::standin::Stream;

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* result, unsigned flags,
                                         int priority) {
  if (const cudaError_t error = Begin()) return error;
  return Result(capstan::standin::Create(result, flags, priority));
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* result, unsigned flags) {
  return cudaStreamCreateWithPriority(result, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t* result) {
  return cudaStreamCreateWithPriority(result, 0, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (const cudaError_t error = Begin()) return error;
  return Result(capstan::standin::Destroy(stream));
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (const cudaError_t error = Begin()) return error;
  return Result(capstan::standin::WaitForStream(stream, "stream_synchronize"));
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (const cudaError_t error = Begin()) return error;
  return Result(capstan::standin::Query(stream));
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  if (const cudaError_t error = Begin()) return error;
  return Result(capstan::standin::Ask(
      stream, priority, [](const Stream& s) { return s.priority; }));
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
  if (const cudaError_t error = Begin()) return error;
  return Result(capstan::standin::Ask(stream, flags,
                                      [](const Stream& s) { return s.flags; }));
}

cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
  if (const cudaError_t error = Begin()) return error;
  return Result(capstan::standin::Ask(
      stream, device, [](const Stream& s) { return s.device; }));
}

cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  if (const cudaError_t error = Begin()) return error;
  return Result(capstan::standin::Ask(
      stream, id, [](const Stream& s) { return s.place + 1; }));
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = capstan::standin::kLeastPriority;
  *greatest = capstan::standin::kGreatestPriority;
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function,
                               void* data) {
  return capstan::standin::HostFunction(stream, "host_function",
                                        [=] { function(data); });
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream,
                                  cudaStreamCallback_t callback, void* data,
                                  unsigned) {
  return capstan::standin::HostFunction(
      stream, "callback", [=] { callback(stream, cudaSuccess, data); });
}

cudaError_t cudaDeviceSynchronize() {
  if (const cudaError_t error = Begin()) return error;
  return Result(capstan::standin::WaitForDevice(
      capstan::standin::CurrentDevice(), "device_synchronize"));
}

}  // extern "C"
