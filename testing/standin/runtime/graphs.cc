// SPDX-License-Identifier: Apache-2.0
#include "testing/standin/runtime/graphs.h"

#include <algorithm>
#include <set>

#include "testing/standin/runtime/race_report.h"
#include "testing/standin/runtime/report.h"

namespace capstan::standin {
namespace {

thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

// All under the machine's mutex.
struct Graphs {
  std::vector<std::shared_ptr<Capture>> captures;  // under way
  unsigned long long captured = 0;                 // NOLINT: as in CUDA
  // Handles: of a cudaGraph_t and a cudaGraphExec_t a shared_ptr that is never
  // moved.
  std::set<std::shared_ptr<Graph>*> handles;
};

Graphs& TheGraphs() {
  static Graphs* const graphs = new Graphs;
  return *graphs;
}

template <typename Handle>
std::shared_ptr<Graph>* Find(Handle handle) {
  auto* const graph = reinterpret_cast<std::shared_ptr<Graph>*>(handle);
  return TheGraphs().handles.count(graph) == 0 ? nullptr : graph;
}

template <typename Handle>
Handle NewHandle(std::shared_ptr<Graph> graph) {
  auto* const handle = new std::shared_ptr<Graph>(std::move(graph));
  TheGraphs().handles.insert(handle);
  return reinterpret_cast<Handle>(handle);
}

// Ends the capture of all its streams.
void Release(const std::shared_ptr<Capture>& capture) {
  for (Stream* const stream : capture->streams) {
    stream->capture = nullptr;
    stream->frontier.clear();
    stream->capture_clock.clear();
  }
  auto& captures = TheGraphs().captures;
  captures.erase(std::find(captures.begin(), captures.end(), capture));
}

cudaError_t BeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  Machine& machine = TheMachine();
  Lock lock(machine.mutex);
  Stream* const stream = FindStream(&machine, handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (stream->legacy) return cudaErrorStreamCaptureUnsupported;
  if (stream->capture != nullptr) return cudaErrorIllegalState;
  auto capture = std::make_shared<Capture>();
  capture->id = ++TheGraphs().captured;
  capture->graph->id = static_cast<int64_t>(capture->id);
  capture->mode = mode;
  capture->origin = stream;
  capture->thread = std::this_thread::get_id();
  capture->streams.push_back(stream);
  stream->capture = capture;
  stream->frontier.clear();
  stream->capture_clock.clear();
  TheGraphs().captures.push_back(capture);
  return cudaSuccess;
}

// Whether the origin's stream is behind all nodes.
bool Joined(const Capture& capture) {
  const auto& nodes = capture.graph->nodes;
  std::vector<bool> behind(nodes.size(), false);
  std::vector<int> open = capture.origin->frontier;
  while (!open.empty()) {
    const int node = open.back();
    open.pop_back();
    if (behind[node]) continue;
    behind[node] = true;
    open.insert(open.end(), nodes[node].after.begin(), nodes[node].after.end());
  }
  return std::find(behind.begin(), behind.end(), false) == behind.end();
}

cudaError_t EndCapture(cudaStream_t handle, cudaGraph_t* result) {
  Machine& machine = TheMachine();
  Lock lock(machine.mutex);
  *result = nullptr;
  Stream* const stream = FindStream(&machine, handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  const auto capture = stream->capture;
  if (capture == nullptr) return cudaErrorIllegalState;
  if (capture->mode != cudaStreamCaptureModeRelaxed &&
      capture->thread != std::this_thread::get_id()) {
    return cudaErrorStreamCaptureWrongThread;
  }
  const bool matched = capture->origin == stream;
  const bool joined = Joined(*capture);
  Release(capture);
  if (!matched) return cudaErrorStreamCaptureUnmatched;
  if (!capture->valid) return cudaErrorStreamCaptureInvalidated;
  if (!joined) return cudaErrorStreamCaptureUnjoined;
  *result = NewHandle<cudaGraph_t>(capture->graph);
  return cudaSuccess;
}

// The state of one launch: which nodes are done.
struct Launch {
  std::shared_ptr<const Graph> graph;
  std::vector<bool> done;
  size_t left = 0;
};

// Runs what can run, later nodes first: only dependencies order them.
Progress RunNodes(Launch* launch) {
  const auto& nodes = launch->graph->nodes;
  bool moved = true;
  while (moved && launch->left > 0) {
    moved = false;
    for (size_t i = nodes.size(); i-- > 0;) {
      if (launch->done[i]) continue;
      const bool ready =
          std::all_of(nodes[i].after.begin(), nodes[i].after.end(),
                      [&](int before) { return launch->done[before]; });
      if (!ready) continue;
      if (nodes[i].work.run && nodes[i].work.run() == Progress::kNotYet) {
        continue;
      }
      launch->done[i] = true;
      --launch->left;
      moved = true;
    }
  }
  return launch->left == 0 ? Progress::kDone : Progress::kNotYet;
}

cudaError_t LaunchGraph(cudaGraphExec_t handle, cudaStream_t stream_handle) {
  Machine& machine = TheMachine();
  Lock lock(machine.mutex);
  const auto* const found = Find(handle);
  Stream* const stream = FindStream(&machine, stream_handle);
  if (found == nullptr || stream == nullptr) {
    return cudaErrorInvalidResourceHandle;
  }
  return SubmitGraph(&machine, &lock, stream, *found);
}

}  // namespace

Work WorkOf(const std::shared_ptr<Graph>& graph) {
  auto launch = std::make_shared<Launch>();
  launch->graph = graph;
  launch->done.assign(graph->nodes.size(), false);
  launch->left = graph->nodes.size();
  Work work;
  work.name = "graph";
  for (const Node& node : graph->nodes) {
    work.reads.insert(work.reads.end(), node.work.reads.begin(),
                      node.work.reads.end());
    work.writes.insert(work.writes.end(), node.work.writes.begin(),
                       node.work.writes.end());
  }
  work.run = [launch] { return RunNodes(launch.get()); };
  return work;
}

cudaError_t UnsafeCall() {
  if (thread_mode == cudaStreamCaptureModeRelaxed || OnDeviceThread()) {
    return cudaSuccess;
  }
  Lock lock(TheMachine().mutex);
  const auto self = std::this_thread::get_id();
  cudaError_t error = cudaSuccess;
  for (const auto& capture : TheGraphs().captures) {
    const bool own = capture->thread == self &&
                     capture->mode != cudaStreamCaptureModeRelaxed;
    const bool global = thread_mode == cudaStreamCaptureModeGlobal &&
                        capture->mode == cudaStreamCaptureModeGlobal;
    if (!own && !global) continue;
    capture->valid = false;
    error = cudaErrorStreamCaptureUnsupported;
  }
  return error;
}

cudaError_t UnsupportedWhileCapturing(Stream* stream) {
  if (stream->capture == nullptr) return cudaSuccess;
  if (!stream->capture->valid) return cudaErrorStreamCaptureInvalidated;
  stream->capture->valid = false;
  return cudaErrorStreamCaptureUnsupported;
}

cudaError_t AddNode(Stream* stream, Work work, bool copied) {
  Capture& capture = *stream->capture;
  if (!capture.valid) return cudaErrorStreamCaptureInvalidated;
  NoteAccesses(stream, work, &stream->capture_clock, &capture.accesses);
  Node node;
  node.after = stream->frontier;
  node.copied = copied;
  node.work = std::move(work);
  stream->frontier = {static_cast<int>(capture.graph->nodes.size())};
  capture.graph->nodes.push_back(std::move(node));
  return cudaSuccess;
}

namespace {

cudaError_t CaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status,
                        unsigned long long* id) {  // NOLINT: as in CUDA
  Machine& machine = TheMachine();
  Lock lock(machine.mutex);
  const Stream* const stream = FindStream(&machine, handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  const auto& capture = stream->capture;
  *status = capture == nullptr ? cudaStreamCaptureStatusNone
            : capture->valid   ? cudaStreamCaptureStatusActive
                               : cudaStreamCaptureStatusInvalidated;
  if (id != nullptr && capture != nullptr) *id = capture->id;
  return cudaSuccess;
}

// Nodes are known by their address, which stays when a capture has ended.
cudaGraphNode_t NodeHandle(const Node* node) {
  return reinterpret_cast<cudaGraphNode_t>(const_cast<Node*>(node));
}

const Node& NodeOf(cudaGraphNode_t handle) {
  return *reinterpret_cast<const Node*>(handle);
}

cudaGraphNodeType TypeOf(const Node& node) {
  if (node.copied) {
    return node.work.name == "memset" ? cudaGraphNodeTypeMemset
                                      : cudaGraphNodeTypeMemcpy;
  }
  if (node.work.name == "host_function") return cudaGraphNodeTypeHost;
  return node.work.cost.launches > 0 ? cudaGraphNodeTypeKernel
                                     : cudaGraphNodeTypeEmpty;
}

// Both are spans of the copy: nothing in a graph is pageable.
cudaMemcpy3DParms CopyOf(const Node& node) {
  const auto place = [](const std::vector<Span>& spans) {
    cudaPitchedPtr at = {};
    at.ptr = const_cast<void*>(spans[0].begin);
    at.xsize = at.pitch = static_cast<size_t>(spans[0].bytes);
    at.ysize = 1;
    return at;
  };
  cudaMemcpy3DParms copy = {};
  copy.srcPtr = place(node.work.reads);
  copy.dstPtr = place(node.work.writes);
  copy.extent = {copy.dstPtr.xsize, 1, 1};
  copy.kind = cudaMemcpyDefault;
  return copy;
}

cudaError_t Nodes(cudaGraph_t handle, cudaGraphNode_t* nodes, size_t* count) {
  Lock lock(TheMachine().mutex);
  const auto* const graph = Find(handle);
  if (graph == nullptr || count == nullptr) return cudaErrorInvalidValue;
  const size_t total = (*graph)->nodes.size();
  if (nodes != nullptr) {
    for (size_t i = 0; i < *count; ++i) {
      nodes[i] = i < total ? NodeHandle(&(*graph)->nodes[i]) : nullptr;
    }
    *count = std::min(*count, total);
  } else {
    *count = total;
  }
  return cudaSuccess;
}

cudaError_t Instantiate(cudaGraphExec_t* result, cudaGraph_t handle) {
  Lock lock(TheMachine().mutex);
  const auto* const graph = Find(handle);
  if (graph == nullptr) return cudaErrorInvalidValue;
  // A graph can't change once its capture has ended.
  *result = NewHandle<cudaGraphExec_t>(*graph);
  return cudaSuccess;
}

template <typename Handle>
cudaError_t Destroy(Handle handle) {
  std::shared_ptr<Graph> graph;  // what it holds may call CUDA when it goes
  Lock lock(TheMachine().mutex);
  auto* const found = Find(handle);
  if (found == nullptr) return cudaErrorInvalidValue;
  TheGraphs().handles.erase(found);
  graph = std::move(*found);
  delete found;
  lock.unlock();
  return cudaSuccess;
}

}  // namespace
}  // namespace capstan::standin

extern "C" {

using capstan::standin::Begin;
using capstan::standin::Result;

cudaError_t cudaStreamBeginCapture(cudaStream_t stream,
                                   cudaStreamCaptureMode mode) {
  if (const cudaError_t error = Begin()) return error;
  return Result(capstan::standin::BeginCapture(stream, mode));
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  if (const cudaError_t error = Begin()) return error;
  return Result(capstan::standin::EndCapture(stream, graph));
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream,
                                  cudaStreamCaptureStatus* status) {
  if (const cudaError_t error = Begin()) return error;
  return Result(capstan::standin::CaptureInfo(stream, status, nullptr));
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream,
                                     cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** dependencies,
                                     const cudaGraphEdgeData** edges,
                                     size_t* count) {
  if (const cudaError_t error = Begin()) return error;
  if (graph != nullptr) *graph = nullptr;
  if (dependencies != nullptr) *dependencies = nullptr;
  if (edges != nullptr) *edges = nullptr;
  if (count != nullptr) *count = 0;
  return Result(capstan::standin::CaptureInfo(stream, status, id));
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, capstan::standin::thread_mode);
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* result,
                                          cudaGraph_t graph,
                                          unsigned long long) {
  if (const cudaError_t error = Begin()) return error;
  return Result(capstan::standin::Instantiate(result, graph));
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* result, cudaGraph_t graph,
                                 unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(result, graph, flags);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  if (const cudaError_t error = Begin()) return error;
  return Result(capstan::standin::LaunchGraph(graph, stream));
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes,
                              size_t* count) {
  if (const cudaError_t error = Begin()) return error;
  return Result(capstan::standin::Nodes(graph, nodes, count));
}

cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node,
                                 cudaGraphNodeType* type) {
  if (const cudaError_t error = Begin()) return error;
  *type = capstan::standin::TypeOf(capstan::standin::NodeOf(node));
  return cudaSuccess;
}

cudaError_t cudaGraphMemcpyNodeGetParams(cudaGraphNode_t node,
                                         cudaMemcpy3DParms* copy) {
  if (const cudaError_t error = Begin()) return error;
  const capstan::standin::Node& of = capstan::standin::NodeOf(node);
  if (capstan::standin::TypeOf(of) != cudaGraphNodeTypeMemcpy) {
    return Result(cudaErrorInvalidValue);
  }
  *copy = capstan::standin::CopyOf(of);
  return cudaSuccess;
}

cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t, cudaGraphNode_t*,
                                         cudaGraphEdgeData*, size_t*) {
  return Result(cudaErrorNotSupported);
}

cudaError_t cudaGraphDebugDotPrint(cudaGraph_t, const char*, unsigned) {
  return Result(cudaErrorNotSupported);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  if (const cudaError_t error = Begin()) return error;
  return Result(capstan::standin::Destroy(graph));
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  if (const cudaError_t error = Begin()) return error;
  return Result(capstan::standin::Destroy(graph));
}

}  // extern "C"
