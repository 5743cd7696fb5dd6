// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_DATA_DATA_ORDER_H_
#define CAPSTAN_TRAINER_DATA_DATA_ORDER_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/types/span.h"
#include "plugins/sdk/dataset.h"

namespace capstan {

// The run's one global sequence of samples: position p is sample p mod size of
// epoch p / size, or, shuffled, where that epoch's permutation (keyed by seed
// and epoch) sends it.
struct DataOrder {
  int64_t size = 0;
  bool shuffle = false;
  uint64_t seed = 0;

  // If greater than 0, each group of this many consecutive positions of an
  // epoch is sorted by length, longest first, stably. The longest of all
  // samples changes places with the epoch's first, so that a run that won't fit
  // into memory fails at once (get_length_grouped_indices of transformers'
  // trainer_pt_utils.py).
  int64_t group = 0;
  std::function<int64_t(int64_t sample)> length;  // if group is
  int64_t longest = 0;                            // a sample; if group is
};

// The first of the longest samples among the first `most` of `data`.
int64_t LongestSample(const DatasetReader& data, int64_t most);

// The order in which a run goes through `data`; with group_by_length sorted in
// groups of 50 global batches, fewer where there are fewer than 200 in an
// epoch, as in transformers. The order of no more than `data` and the global
// batch: it is the same on any number of ranks. `data` outlives it.
DataOrder OrderOf(const DatasetReader& data, uint64_t seed,
                  bool group_by_length, int64_t global_batch_size);

// A DataOrder's samples. Keeps the group that it sorted last; one thread.
class SampleSequence {
 public:
  explicit SampleSequence(DataOrder order) : order_(std::move(order)) {}

  // The samples at `position` and on, one an element.
  void At(int64_t position, absl::Span<int64_t> samples);

 private:
  // The sample at place `index` of an epoch whose permutation has `key`, before
  // groups are sorted.
  int64_t Unsorted(uint64_t key, int64_t index) const;
  uint64_t KeyOf(int64_t epoch) const;
  void SortGroup(int64_t epoch, int64_t group);

  const DataOrder order_;
  // The last sorted group of those in an epoch, and its samples.
  int64_t sorted_epoch_ = -1;
  int64_t sorted_group_ = -1;
  std::vector<int64_t> sorted_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_DATA_DATA_ORDER_H_
