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

std::vector<Bucket> CutBuckets(const FlatLayout& layout, int64_t element_bytes,
                               int64_t first_bytes, int64_t cap_bytes) {
  std::vector<Bucket> buckets;
  for (size_t i = 0; i < layout.ranges.size(); ++i) {
    const ParameterRange& range = layout.ranges[i];
    const int64_t end = i + 1 < layout.ranges.size()
                            ? layout.ranges[i + 1].offset
                            : layout.numel;
    const int64_t cap = buckets.size() <= 1 ? first_bytes : cap_bytes;
    if (buckets.empty() || (end - buckets.back().begin) * element_bytes > cap) {
      buckets.push_back({range.offset, range.offset, {}});
    }
    buckets.back().end = end;
    buckets.back().parameters.push_back(range.parameter);
  }
  return buckets;
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
