// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_DATA_DATA_ORDER_H_
#define CAPSTAN_TRAINER_DATA_DATA_ORDER_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/types/span.h"
#include "plugins/sdk/dataset.h"

namespace capstan {

// The run's global sequence of samples: position p is sample p mod size of
// epoch p / size or, if shuffled, that index permuted by the epoch's
// permutation (keyed by seed and epoch).
struct DataOrder {
  int64_t size = 0;
  bool shuffle = false;
  uint64_t seed = 0;

  // If > 0, each group of this many consecutive positions of an epoch is sorted
  // by length, longest first, stably, and the longest sample of all is swapped
  // with the epoch's first, so that a run that won't fit into memory fails at
  // once (get_length_grouped_indices of transformers' trainer_pt_utils.py).
  int64_t group = 0;
  std::function<int64_t(int64_t sample)> length;  // required if group > 0
  int64_t longest = 0;  // index of the longest sample, if group > 0
};

// The first of the longest among the first `most` samples of `data`.
int64_t LongestSample(const DatasetReader& data, int64_t most);

// The order in which a run reads `data`. With group_by_length it is sorted in
// groups of 50 global batches, fewer if an epoch has fewer than 200, as in
// transformers. Depends only on `data` and the global batch, not on the number
// of ranks. `data` must outlive it.
DataOrder OrderOf(const DatasetReader& data, uint64_t seed,
                  bool group_by_length, int64_t global_batch_size);

// Enumerates a DataOrder's samples; caches the last sorted group. One thread.
class SampleSequence {
 public:
  explicit SampleSequence(DataOrder order) : order_(std::move(order)) {}

  // Writes the samples at `position` and after to `samples`.
  void At(int64_t position, absl::Span<int64_t> samples);

 private:
  // The sample at `index` of an epoch whose permutation has `key`, before
  // sorting.
  int64_t Unsorted(uint64_t key, int64_t index) const;
  uint64_t KeyOf(int64_t epoch) const;
  void SortGroup(int64_t epoch, int64_t group);

  const DataOrder order_;
  // The cached group: its epoch and number, and its samples.
  int64_t sorted_epoch_ = -1;
  int64_t sorted_group_ = -1;
  std::vector<int64_t> sorted_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_DATA_DATA_ORDER_H_
