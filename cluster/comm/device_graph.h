// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_COMM_DEVICE_GRAPH_H_
#define CAPSTAN_CLUSTER_COMM_DEVICE_GRAPH_H_

#include <cstdint>

#include "absl/status/status.h"

namespace capstan {

// Work of a device that is recorded once and repeated as a whole: a CUDA graph.
// It reads and writes the memory that it was recorded with and allocates from a
// pool that all graphs of the process share. Hence at most one of them runs at
// a time, and the reader of a result must keep its tensor. Used by one thread;
// throws CUDA's errors.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;

  // Makes the current stream, which must not be the default one, record until
  // End() what this thread and autograd's enqueue, without running it. Other
  // threads may use the device meanwhile. Waits for the device.
  virtual void Begin() = 0;
  // Ends the recording. Must be called after Begin(), even after an exception,
  // with the same current stream. An error says why the work can't be repeated.
  virtual absl::Status End() = 0;

  // Enqueues the work on the current stream, after End() has returned OK.
  virtual void Replay() = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_COMM_DEVICE_GRAPH_H_
