// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_STRATEGIES_COMMON_REDUCE_QUEUE_H_
#define CAPSTAN_STRATEGIES_COMMON_REDUCE_QUEUE_H_

#include <ATen/core/Tensor.h>

#include <deque>
#include <memory>

#include "plugins/sdk/process_group.h"

namespace capstan {

// How many reductions a ReduceQueue has under way at most: one bucket is
// reduced while the next one fills.
constexpr int kReducesUnderWay = 2;

// Reduce-scatters of gradients on their way into this rank's shard. At most
// kReducesUnderWay are, so that no more buckets than that wait in memory: Start
// finishes the oldest first. With a replica group the slices are summed
// over that, too (hybrid sharding). One thread at a time.
class ReduceQueue {
 public:
  // shards: over which a bucket is cut. replicas: ranks with the same slice,
  // or null. Both outlive this.
  ReduceQueue(ProcessGroup* shards, ProcessGroup* replicas)
      : shards_(shards), replicas_(replicas) {}

  // The sum over the ranks of `sums` [n * size]: this rank's slice goes to
  // `destination` [n], which may be on another device, over what is there or
  // (`add`) in addition to it. Keeps `sums` until it is done.
  void Start(const at::Tensor& sums, const at::Tensor& destination, bool add);

  // Finishes all.
  void Drain();

 private:
  struct Entry {
    std::unique_ptr<Work> work;
    at::Tensor sums;
    at::Tensor slice;  // the destination itself, where that can be
    at::Tensor destination;
    bool add = false;
    bool replicated = false;  // the second sum is under way
  };

  // Waits for what the entry is at; true if that was all.
  bool Step(Entry& entry);
  void FinishOldest();

  ProcessGroup* const shards_;
  ProcessGroup* const replicas_;
  std::deque<Entry> entries_;
};

}  // namespace capstan

#endif  // CAPSTAN_STRATEGIES_COMMON_REDUCE_QUEUE_H_
