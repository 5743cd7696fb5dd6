// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_STRATEGIES_COMMON_REDUCE_QUEUE_H_
#define CAPSTAN_STRATEGIES_COMMON_REDUCE_QUEUE_H_

#include <ATen/core/Tensor.h>

#include <deque>
#include <memory>
#include <string>

#include "base/side_stream.h"
#include "plugins/sdk/process_group.h"

namespace capstan {

// The most reductions in progress in a ReduceQueue: one bucket is reduced while
// the next one fills.
constexpr int kReducesUnderWay = 2;

// Reduce-scatters gradients into this rank's shard, at most kReducesUnderWay at
// a time, which bounds the buckets waiting in memory: Start first completes the
// oldest. With a replica group the slices are summed over it, too (hybrid
// sharding): once, when all of a step's micro-steps are in them. One thread at
// a time.
class ReduceQueue {
 public:
  // shards: the ranks that a bucket is cut over. replicas: the ranks with the
  // same slice, or null. copies: where slices go to destinations in host
  // memory; null: there are none. All outlive this.
  ReduceQueue(ProcessGroup* shards, ProcessGroup* replicas, SideStream* copies)
      : shards_(shards), replicas_(replicas), copies_(copies) {}

  // Completes the oldest reductions until there is room for one more, and keeps
  // that room for the next Start: so that other collectives can begin between
  // the two, in memory that the oldest had.
  void Reserve();

  // Sums `sums` [n * size] over the ranks; this rank's slice is written, or
  // added if `add`, to `destination` [n], which may be in host memory (if this
  // has `copies`). Keeps `sums` until done. `last`: nothing is added to
  // `destination` any more, which is then summed over the replicas.
  void Start(const at::Tensor& sums, const at::Tensor& destination, bool add,
             bool last);

  // Completes all. If destinations are in host memory, waits until they are
  // written.
  void Drain();

 private:
  struct Entry {
    std::unique_ptr<Work> work;
    at::Tensor sums;
    at::Tensor slice;  // the destination itself, where that can be
    at::Tensor destination;
    bool add = false;
    bool last = false;
    std::string label;  // CollectiveLabel's, for the second sum
  };

  bool OnHost(const Entry& entry) const {
    return entry.destination.device().type() != shards_->device().type();
  }
  // Waits for the oldest reduce-scatter, and puts its slice where it belongs.
  void FinishOldest();
  Entry TakeOldest();
  void Replicate(Entry entry);
  void StartCopy(Entry entry);
  // Waits for the last copy to the host.
  void FinishCopy();

  ProcessGroup* const shards_;
  ProcessGroup* const replicas_;
  SideStream* const copies_;
  int reserved_ = 0;
  std::deque<Entry> entries_;
  // Sums over replicas in the destinations themselves, which take no memory.
  std::deque<Entry> replicating_;
  // The last copy that was begun: `slice` is on the device, and `sums` in host
  // memory, to be added to the destination, for which the host must wait
  // (undefined: copied there right away).
  std::unique_ptr<Entry> copying_;
};

}  // namespace capstan

#endif  // CAPSTAN_STRATEGIES_COMMON_REDUCE_QUEUE_H_
