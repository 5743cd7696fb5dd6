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

struct CommunicationStats {
  int64_t bytes_sent = 0;  // by the ring algorithms' formulas
  // Seconds with a collective in progress, and seconds blocked in Wait; the
  // difference was hidden behind computation. On CUDA the device measures its
  // collectives and its streams' waits, known up to a step later.
  double busy_seconds = 0.0;
  double exposed_seconds = 0.0;
};

// A collective in progress. Its tensors must not be touched until Wait returns.
// It may be destroyed without Wait only after an error.
class Work {
 public:
  virtual ~Work();
  // Blocks the thread, on CUDA the current stream. Throws CommunicationError.
  virtual void Wait() = 0;
};

// All ranks must call the same collectives in the same order, from one thread
// at a time (maybe autograd's). Tensors are contiguous, on device(), of one
// size on all ranks. Inputs are not modified and must not overlap the output,
// but AllGather's may be this rank's slice of it.
class ProcessGroup {
 public:
  virtual ~ProcessGroup();

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual at::Device device() const = 0;
  // "shm" (one host), "shm+gloo" (several), "gloo", "nccl", or "none" (size 1).
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
  // Slice r of output [n * size()] = slice rank() of rank r's input, of the
  // same size.
  virtual std::unique_ptr<Work> AllToAll(const at::Tensor& output,
                                         const at::Tensor& input) = 0;
  // Sends input [n] to rank `to` and receives output [n] from rank `from`. -1:
  // none; `output` is then left as it is, but has input's size. If b sends to
  // a, a receives from b.
  virtual std::unique_ptr<Work> SendRecv(const at::Tensor& output, int from,
                                         const at::Tensor& input, int to) = 0;

  // Sums numbers in host memory, in place, and waits. All ranks get equal bits.
  virtual void AllReduceHost(absl::Span<double> values) = 0;

  // Returns the group of ranks that pass this color (0 or more), in order.
  // Collective over all ranks. This group outlives it and counts its traffic.
  virtual absl::StatusOr<std::unique_ptr<ProcessGroup>> Split(int color) = 0;

  virtual CommunicationStats stats() const = 0;  // so far
};

// A grid of ranks. Neighbours along kSequence divide a micro-batch's rows,
// ranks along kShard divide a replica, and those along kData hold replicas.
enum class MeshAxis { kData, kShard, kSequence };
struct Mesh {
  int data = 1;
  int shard = 1;
  int sequence = 1;

  int size() const { return data * shard * sequence; }
  // rank = (index(kData) * shard + index(kShard)) * sequence + index(kSequence)
  int index(MeshAxis axis, int rank) const {
    if (axis == MeshAxis::kSequence) return rank % sequence;
    if (axis == MeshAxis::kShard) return rank / sequence % shard;
    return rank / sequence / shard;
  }
  // For Split into groups of ranks that differ only along `axis`, by index.
  int color(MeshAxis axis, int rank) const {
    const int stride = axis == MeshAxis::kSequence ? 1
                       : axis == MeshAxis::kShard  ? sequence
                                                   : sequence * shard;
    return rank - index(axis, rank) * stride;
  }
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_PROCESS_GROUP_H_
