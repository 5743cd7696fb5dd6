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

// What a rank's collectives have cost so far.
struct CommunicationStats {
  // Bytes that this rank has sent, by the ring algorithms' formulas.
  int64_t bytes_sent = 0;
  // Seconds in which a collective of this rank was under way, counted once
  // where several were, and seconds that a thread has stood in Wait: the rest
  // was hidden behind computation. Zero where the backend can't tell (CUDA,
  // where Wait doesn't block).
  double busy_seconds = 0.0;
  double exposed_seconds = 0.0;
};

// A collective under way. Tensors given to it must not be touched until Wait
// returns. Destroying it without Wait is allowed only after an error.
class Work {
 public:
  virtual ~Work();
  // On CPU blocks the thread; on CUDA makes the current stream wait. Throws
  // CommunicationError.
  virtual void Wait() = 0;
};

// The ranks of a run. All ranks must call the same collectives in the same
// order. One thread at a time (an autograd thread may be that one). Tensors
// are contiguous, on device(), and of the same size on all ranks.
//
// An input stays as it is and doesn't overlap its output, except in AllGather,
// where it may be this rank's own part of the output.
class ProcessGroup {
 public:
  virtual ~ProcessGroup();

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual at::Device device() const = 0;
  // "shm" (shared memory of one host), "gloo", "nccl", or "none" for a group of
  // one.
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

  // The ranks that give the same color (0 or more) form a group of their own,
  // in their order here; this rank's is returned. Collective over all ranks.
  // What it sends counts in this group's stats too. This group must outlive
  // it.
  virtual absl::StatusOr<std::unique_ptr<ProcessGroup>> Split(int color) = 0;

  virtual CommunicationStats stats() const = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_PROCESS_GROUP_H_
