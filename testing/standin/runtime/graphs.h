// SPDX-License-Identifier: Apache-2.0
//
// Stream capture and graphs. A graph is the works that were enqueued while its
// streams were captured; each launch runs them anew.
#ifndef CAPSTAN_TESTING_STANDIN_RUNTIME_GRAPHS_H_
#define CAPSTAN_TESTING_STANDIN_RUNTIME_GRAPHS_H_

#include <cuda_runtime_api.h>

#include <memory>
#include <thread>
#include <vector>

#include "testing/standin/runtime/machine.h"
#include "testing/standin/runtime/races.h"

namespace capstan::standin {

struct Node {
  Work work;
  std::vector<int> after;  // places of nodes that must be done before
  bool copied = false;     // a copy or a memset, not a launch
};

struct Graph {
  int64_t id = 0;
  std::vector<Node> nodes;
};

// A capture that is under way.
struct Capture {
  unsigned long long id = 0;  // NOLINT: as in CUDA
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  Stream* origin = nullptr;
  std::thread::id thread;
  bool valid = true;
  std::vector<Stream*> streams;
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
  AccessMap accesses;  // races within the graph
};

// Of calls that CUDA calls unsafe (cudaMalloc, cudaEventQuery, ..): an error
// where the capture of any stream forbids them in this thread, and the capture
// is invalid from then on. Takes the machine's mutex.
cudaError_t UnsafeCall();

// With the mutex held: the same for a call on this stream, which must not be
// captured.
cudaError_t UnsupportedWhileCapturing(Stream* stream);

// With the mutex held: adds to the graph of the stream's capture.
cudaError_t AddNode(Stream* stream, Work work, bool copied);

// One launch of the graph: what its nodes touch, and their runs. Its name is
// "graph", its cost nothing: its nodes have theirs.
Work WorkOf(const std::shared_ptr<Graph>& graph);

// With the mutex held (streams.cc): appends a launch.
cudaError_t SubmitGraph(Machine* machine, Lock* lock, Stream* stream,
                        const std::shared_ptr<Graph>& graph);

}  // namespace capstan::standin

#endif  // CAPSTAN_TESTING_STANDIN_RUNTIME_GRAPHS_H_
