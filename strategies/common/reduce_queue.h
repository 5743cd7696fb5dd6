// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_STRATEGIES_COMMON_REDUCE_QUEUE_H_
#define CAPSTAN_STRATEGIES_COMMON_REDUCE_QUEUE_H_

#include <ATen/core/Tensor.h>

#include <deque>
#include <memory>
#include <string>

#include "plugins/sdk/process_group.h"

namespace capstan {

// The most reductions in progress in a ReduceQueue: one bucket is reduced while
// the next one fills.
constexpr int kReducesUnderWay = 2;

// Reduce-scatters gradients into this rank's shard, at most kReducesUnderWay at
// a time, which bounds the buckets waiting in memory: Start first completes the
// oldest. With a replica group the slices are summed over it, too (hybrid
// sharding). One thread at a time.
class ReduceQueue {
 public:
  // shards: the ranks that a bucket is cut over. replicas: the ranks with the
  // same slice, or null. Both outlive this.
  ReduceQueue(ProcessGroup* shards, ProcessGroup* replicas)
      : shards_(shards), replicas_(replicas) {}

  // Sums `sums` [n * size] over the ranks; this rank's slice is written, or
  // added if `add`, to `destination` [n], which may be on another device. Keeps
  // `sums` until done.
  void Start(const at::Tensor& sums, const at::Tensor& destination, bool add);

  // Completes all.
  void Drain();

 private:
  struct Entry {
    std::unique_ptr<Work> work;
    at::Tensor sums;
    at::Tensor slice;  // the destination itself, where that can be
    at::Tensor destination;
    bool add = false;
    bool replicated = false;  // the second sum is under way
    std::string label;        // CollectiveLabel's, for the second sum
  };

  // Waits for the entry's current stage; true if it was the last.
  bool Step(Entry& entry);
  void FinishOldest();

  ProcessGroup* const shards_;
  ProcessGroup* const replicas_;
  std::deque<Entry> entries_;
};

}  // namespace capstan

#endif  // CAPSTAN_STRATEGIES_COMMON_REDUCE_QUEUE_H_
