// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_PROCESS_GROUP_H_
#define CAPSTAN_PLUGINS_SDK_PROCESS_GROUP_H_

#include <ATen/core/Tensor.h>

#include <memory>
#include <stdexcept>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/status.h"

namespace capstan {

// The cost of a rank's collectives so far.
struct CommunicationStats {
  // Bytes that this rank has sent, by the ring algorithms' formulas.
  int64_t bytes_sent = 0;
  // Seconds with at least one of this rank's collectives in progress, and
  // seconds blocked in Wait; the difference was hidden behind computation. On
  // CUDA they are measured on the device, as the time of its collectives and
  // the time that its streams waited for them, and are known up to a step
  // later.
  double busy_seconds = 0.0;
  double exposed_seconds = 0.0;
};

// A collective in progress. Its tensors must not be touched until Wait returns.
// Destroying it without Wait is allowed only after an error.
class Work {
 public:
  virtual ~Work();
  // Blocks the thread on CPU; makes the current stream wait on CUDA. Throws
  // CommunicationError.
  virtual void Wait() = 0;
};

// The ranks of a run. All ranks must call the same collectives in the same
// order, from one thread at a time (which may be an autograd thread). Tensors
// are contiguous, on device(), and of the same size on all ranks.
//
// Inputs are not modified and must not overlap the output, except that
// AllGather's input may be this rank's slice of the output.
class ProcessGroup {
 public:
  virtual ~ProcessGroup();

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual at::Device device() const = 0;
  // "shm" (shared memory of one host), "shm+gloo" (of several hosts), "gloo",
  // "nccl", or "none" for a group of one.
  virtual std::string backend() const = 0;

  // tensor = sum of tensor over the ranks, in place. Started at once.
  virtual std::unique_ptr<Work> AllReduce(const at::Tensor& tensor) = 0;
  // output [n] = this rank's slice of the sum of input [n * size()].
  virtual std::unique_ptr<Work> ReduceScatter(const at::Tensor& output,
                                              const at::Tensor& input) = 0;
  // output [n * size()] = input [n] of rank 0, of rank 1, ..
  virtual std::unique_ptr<Work> AllGather(const at::Tensor& output,
                                          const at::Tensor& input) = 0;
  // tensor = tensor of rank `root`.
  virtual std::unique_ptr<Work> Broadcast(const at::Tensor& tensor,
                                          int root) = 0;

  // Sums a few numbers in host memory over the ranks, in place, and waits. The
  // result is bit-identical on all ranks.
  virtual void AllReduceHost(absl::Span<double> values) = 0;

  // Ranks that pass the same color (0 or more) form a group, in their order
  // here; returns this rank's. Collective over all ranks. This group must
  // outlive it, and its traffic counts in this group's stats, too.
  virtual absl::StatusOr<std::unique_ptr<ProcessGroup>> Split(int color) = 0;

  virtual CommunicationStats stats() const = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_PROCESS_GROUP_H_
