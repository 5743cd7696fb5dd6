// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_DATA_DATA_LOADER_H_
#define CAPSTAN_TRAINER_DATA_DATA_LOADER_H_

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/objective.h"

namespace capstan {

// The run's global sequence of samples: position p is sample p mod size of
// epoch p / size or, if shuffled, that index permuted by the epoch's
// permutation (keyed by seed and epoch). If the reader draws anew, epoch e has
// its samples from e * size on in place of those from 0 on.
struct DataOrder {
  int64_t size = 0;
  bool shuffle = false;
  bool anew = false;
  uint64_t seed = 0;

  // If > 0, each group of this many consecutive positions of an epoch is sorted
  // by length, longest first, stably, and the longest sample of all is swapped
  // with the epoch's first, so that a run that won't fit into memory fails at
  // once (get_length_grouped_indices of transformers' trainer_pt_utils.py).
  int64_t group = 0;
  std::function<int64_t(int64_t sample)> length;  // required if group > 0
  int64_t longest = 0;  // index of the longest sample, if group > 0

  // Where each sample stands for several rows, and each global batch of
  // `global_batch_size` for several steps, the sequence above counts samples.
  RolloutPlan rollouts;
  int64_t global_batch_size = 0;  // required unless `rollouts` is the default
};

// The first of the longest among the first `most` samples of `data`.
int64_t LongestSample(const DatasetReader& data, int64_t most);

// The order in which a run reads `data`. With group_by_length it is sorted in
// groups of 50 global batches, fewer if an epoch has fewer than 200, as in
// transformers. Depends only on `data` and the global batch, not on the number
// of ranks. `data` must outlive it.
DataOrder OrderOf(const DatasetReader& data, uint64_t seed,
                  bool group_by_length, int64_t global_batch_size,
                  const RolloutPlan& rollouts = {});

// Enumerates a DataOrder's samples; caches the last sorted group. One thread.
class SampleSequence {
 public:
  explicit SampleSequence(DataOrder order) : order_(std::move(order)) {}

  // Writes the samples at `position` and after to `samples`.
  void At(int64_t position, absl::Span<int64_t> samples);

 private:
  // The same where each sample is one row of one step.
  void Once(int64_t position, absl::Span<int64_t> samples);
  // The sample at `index` of an epoch whose permutation has `key`, before
  // sorting; of the first epoch's.
  int64_t Unsorted(uint64_t key, int64_t index) const;
  uint64_t KeyOf(int64_t epoch) const;
  // What is added to the first epoch's samples for those of this one.
  int64_t FirstOf(int64_t epoch) const {
    return order_.anew ? epoch * order_.size : 0;
  }
  void SortGroup(int64_t epoch, int64_t group);

  const DataOrder order_;
  // The cached group: its epoch and number, and its samples.
  int64_t sorted_epoch_ = -1;
  int64_t sorted_group_ = -1;
  std::vector<int64_t> sorted_;
};

// How a step's samples are dealt out: those of a micro-step, on all ranks, are
// neighbours, or those of a rank.
struct BatchShares {
  int64_t micro_batch_size = 1;
  int64_t global_batch_size = 1;  // a multiple of it
  int ranks = 1;
  // Those of a rank, and so of neighbouring ranks: what they train on together
  // doesn't depend on their number. Only where none is idle.
  bool by_rank = false;

  int64_t micro_batches() const { return global_batch_size / micro_batch_size; }
  // The micro-steps of a step. In the last one there may be fewer micro-batches
  // than ranks.
  int64_t micro_steps() const { return (micro_batches() + ranks - 1) / ranks; }
  int64_t idle_ranks() const { return micro_steps() * ranks - micro_batches(); }
  // The place in the step of the first sample of rank `rank`'s micro-batch in
  // micro-step `index`; -1: there is none for it, and it computes the step's
  // first sample, with weight zero, as the others' collectives need it.
  int64_t FirstSample(int rank, int64_t index) const {
    const int64_t micro_batch =
        by_rank ? rank * micro_steps() + index : index * ranks + rank;
    return micro_batch < micro_batches() ? micro_batch * micro_batch_size : -1;
  }
};

// Removes those of `forgotten` from a micro-batch's samples and, likewise, from
// their positions in the run's sequence. If all are, the first of `data` behind
// them that isn't takes their place, at the first's position, since a
// micro-batch can't be empty: it is to get weight zero. Returns whether that is
// so. Not all of `data` may be forgotten.
bool RemoveForgotten(const std::set<int64_t>& forgotten,
                     const DatasetReader& data, std::vector<int64_t>* samples,
                     std::vector<int64_t>* positions);

// Selects a rank's samples: of the step at position s, in the order,
// micro_batch_size from s + BatchShares::FirstSample on.
struct DataLoaderOptions {
  DataOrder order;
  BatchShares shares;
  int rank = 0;
  int64_t start_position = 0;  // data position when resuming
  // Samples that are never read (RemoveForgotten).
  std::set<int64_t> forgotten;
  c10::Device device{c10::DeviceType::CPU};
};

// Prefetches on its own thread, so that reading doesn't delay steps: up to 16
// micro-batches, fewer if they exceed 32 MiB, but at least 3. On CUDA they are
// also copied ahead from pinned memory, on a separate stream.
//
// Batch tensors are reused for later batches once nobody else holds them or a
// view of them.
class DataLoader {
 public:
  // `reader` must outlive the loader.
  static std::unique_ptr<DataLoader> Create(const DataLoaderOptions& options,
                                            const DatasetReader& reader);
  virtual ~DataLoader();

  // This rank's next micro-batch with its "sample_position" (dataset.h:
  // positions in the order), on options.device, for use on its current stream,
  // which waits for the copy if necessary. Blocks until the batch is read.
  // Returns the reader's error, and again on later calls. Called by one thread
  // at a time.
  virtual absl::StatusOr<Batch> Next() = 0;
};

// The batch of `samples`, with them as its kSamplePosition, on `device`.
absl::StatusOr<Batch> ReadBatch(const DatasetReader& reader,
                                absl::Span<const int64_t> samples,
                                c10::Device device);

// Whether only *batch holds its tensors and their memory, so that they may be
// overwritten. If true, everything former holders did happened before.
bool Unshared(const Batch& batch);

// Waits without occupying a core, unlike Event::synchronize.
void AwaitEvent(const c10::Event& event);

// A reusable buffer for one batch, filled by one thread.
//
// On a GPU the reader writes into pinned memory, which is copied on a separate
// stream; Take makes the consumer's stream, never the host, wait for the copy.
class BatchSlot {
 public:
  // Reads the batch of `samples`, reusing the last batch's memory if free; adds
  // their positions in the run's sequence (kSamplePosition); and starts the
  // copy to the device of `copies`, if that is a GPU stream. Doesn't throw.
  absl::Status Fill(const DatasetReader& reader,
                    absl::Span<const int64_t> samples,
                    absl::Span<const int64_t> positions,
                    const c10::Stream& copies);

  // Returns the batch, once, for use on its device's current stream.
  Batch Take();

  // Size of the batch in bytes.
  int64_t bytes() const;

 private:
  absl::Status Read(const DatasetReader& reader,
                    absl::Span<const int64_t> samples,
                    absl::Span<const int64_t> positions);
  void CopyToDevice(const c10::Stream& copies);

  Batch host_;  // kept for reuse
  Batch device_;
  std::unique_ptr<c10::Event> copied_;  // null: no copy
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_DATA_DATA_LOADER_H_
