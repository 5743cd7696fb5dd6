// SPDX-License-Identifier: Apache-2.0
#include "trainer/data/data_order.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/random.h"

namespace capstan {
namespace {

constexpr int64_t kBatchesInGroup = 50;
// Minimum number of groups per epoch.
constexpr int64_t kLeastGroups = 4;

}  // namespace

int64_t LongestSample(const DatasetReader& data, int64_t most) {
  int64_t longest = 0;
  int64_t length = -1;
  for (int64_t i = 0; i < std::min(data.size(), most); ++i) {
    const int64_t here = data.sample_length(i);
    if (here <= length) continue;
    length = here;
    longest = i;
  }
  return longest;
}

DataOrder OrderOf(const DatasetReader& data, uint64_t seed,
                  bool group_by_length, int64_t global_batch_size) {
  DataOrder order;
  order.size = data.size();
  order.shuffle = data.shuffle();
  order.seed = seed;
  if (!group_by_length) return order;
  const int64_t batches =
      std::clamp(order.size / (global_batch_size * kLeastGroups), int64_t{1},
                 kBatchesInGroup);
  order.group = batches * global_batch_size;
  order.length = [&data](int64_t sample) { return data.sample_length(sample); };
  order.longest = LongestSample(data, order.size);
  return order;
}

void SampleSequence::At(int64_t position, absl::Span<int64_t> samples) {
  while (!samples.empty()) {
    const int64_t epoch = position / order_.size;
    const int64_t first = position % order_.size;
    size_t here = std::min<size_t>(order_.size - first, samples.size());
    if (order_.group > 0) {
      const int64_t group = first / order_.group;
      SortGroup(epoch, group);
      const size_t begin = first - group * order_.group;
      here = std::min(here, sorted_.size() - begin);
      std::copy_n(sorted_.begin() + begin, here, samples.begin());
    } else {
      const uint64_t key = KeyOf(epoch);
      for (size_t i = 0; i < here; ++i) {
        samples[i] = Unsorted(key, first + static_cast<int64_t>(i));
      }
    }
    samples.remove_prefix(here);
    position += static_cast<int64_t>(here);
  }
}

uint64_t SampleSequence::KeyOf(int64_t epoch) const {
  return order_.shuffle ? RandomKey(order_.seed, absl::StrCat("epoch ", epoch))
                        : 0;
}

int64_t SampleSequence::Unsorted(uint64_t key, int64_t index) const {
  const auto place = [&](int64_t i) {
    return order_.shuffle ? PermutedIndex(key, i, order_.size) : i;
  };
  const int64_t sample = place(index);
  if (order_.group == 0) return sample;
  const int64_t first = place(0);
  if (sample == first) return order_.longest;
  return sample == order_.longest ? first : sample;
}

void SampleSequence::SortGroup(int64_t epoch, int64_t group) {
  if (epoch == sorted_epoch_ && group == sorted_group_) return;
  const int64_t begin = group * order_.group;
  const int64_t end = std::min(begin + order_.group, order_.size);
  const uint64_t key = KeyOf(epoch);
  std::vector<std::pair<int64_t, int64_t>> by_length;  // and the sample
  by_length.reserve(end - begin);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t sample = Unsorted(key, i);
    by_length.emplace_back(order_.length(sample), sample);
  }
  std::stable_sort(
      by_length.begin(), by_length.end(),
      [](const auto& a, const auto& b) { return a.first > b.first; });
  sorted_.clear();
  for (const auto& [length, sample] : by_length) sorted_.push_back(sample);
  sorted_epoch_ = epoch;
  sorted_group_ = group;
}

}  // namespace capstan
