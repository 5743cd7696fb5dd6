// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PROCESS_GROUP_DEVICE_GRAPH_H_
#define CAPSTAN_TRAINER_PROCESS_GROUP_DEVICE_GRAPH_H_

#include <cstdint>

#include "absl/status/status.h"

namespace capstan {

// Work of a device that is recorded once and repeated as a whole: a CUDA graph.
// It reads and writes the memory that it was recorded with; what it allocates
// comes from a pool that all graphs of the process share, so that at most one
// of them runs at a time, and a tensor in which one leaves a result is kept by
// whoever reads it. Functions are for one thread, and throw what CUDA reports.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;

  // From here to End() the current stream, which isn't the default one, records
  // what it is given, by this thread and by those of autograd, and runs nothing
  // of it. Other threads may use the device meanwhile. Waits for the device.
  virtual void Begin() = 0;
  // Call after Begin() whatever has happened since then, with the same current
  // stream. An error, without "graph", says why the work can't be repeated.
  virtual absl::Status End() = 0;

  // After End() has returned OK: enqueues the work on the current stream.
  virtual void Replay() = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROCESS_GROUP_DEVICE_GRAPH_H_
