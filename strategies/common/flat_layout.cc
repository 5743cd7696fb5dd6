// SPDX-License-Identifier: Apache-2.0
#include "strategies/common/flat_layout.h"

#include <algorithm>

namespace capstan {

FlatLayout LayOut(const std::vector<ParameterSpec>& specs,
                  const std::vector<int>& order) {
  FlatLayout layout;
  for (int index : order) {
    const int64_t length = specs[index].numel();
    layout.ranges.push_back({index, 0, length, layout.numel});
    layout.numel +=
        (length + kFlatAlignment - 1) / kFlatAlignment * kFlatAlignment;
  }
  return layout;
}

std::vector<int> BackwardOrder(const std::vector<ParameterSpec>& specs,
                               bool trainable) {
  std::vector<int> order;
  for (int i = static_cast<int>(specs.size()) - 1; i >= 0; --i) {
    if (specs[i].trainable == trainable) order.push_back(i);
  }
  return order;
}

std::vector<Bucket> CutBuckets(const FlatLayout& layout, int64_t first,
                               int64_t cap) {
  std::vector<Bucket> buckets;
  for (size_t i = 0; i < layout.ranges.size(); ++i) {
    const ParameterRange& range = layout.ranges[i];
    const int64_t end = i + 1 < layout.ranges.size()
                            ? layout.ranges[i + 1].offset
                            : layout.numel;
    const int64_t most = buckets.size() <= 1 ? first : cap;
    if (buckets.empty() || end - buckets.back().begin > most) {
      buckets.push_back({range.offset, range.offset, {}});
    }
    buckets.back().end = end;
    buckets.back().parameters.push_back(range.parameter);
  }
  return buckets;
}

void PadBuckets(int shards, FlatLayout* layout, std::vector<Bucket>* buckets) {
  const int64_t multiple = kFlatAlignment * shards;
  int64_t added = 0;
  auto range = layout->ranges.begin();
  for (Bucket& bucket : *buckets) {
    for (; range != layout->ranges.end() && range->offset < bucket.end;
         ++range) {
      range->offset += added;
    }
    const int64_t numel = bucket.numel();
    bucket.begin += added;
    added += (multiple - numel % multiple) % multiple;
    bucket.end += added;
  }
  layout->numel += added;
}

std::vector<ParameterRange> CutRanges(const FlatLayout& layout, int64_t begin,
                                      int64_t end) {
  std::vector<ParameterRange> ranges;
  for (const ParameterRange& range : layout.ranges) {
    const int64_t low = std::max(begin, range.offset);
    const int64_t high = std::min(end, range.offset + range.length);
    if (low >= high) continue;
    ranges.push_back({range.parameter, range.begin + low - range.offset,
                      high - low, low - begin});
  }
  return ranges;
}

std::pair<int64_t, int64_t> RankSlice(int64_t numel, int rank, int size) {
  const int64_t share =
      (numel / size + kFlatAlignment - 1) / kFlatAlignment * kFlatAlignment;
  const int64_t begin = std::min(numel, share * rank);
  const int64_t end =
      rank + 1 == size ? numel : std::min(numel, share * (rank + 1));
  return {begin, end};
}

}  // namespace capstan
