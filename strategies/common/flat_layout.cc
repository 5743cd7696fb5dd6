// SPDX-License-Identifier: Apache-2.0
#include "strategies/common/flat_layout.h"

#include <algorithm>
#include <utility>

#include "plugins/sdk/model.h"

namespace capstan {
namespace {

int64_t RoundUp(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// Cuts `order` into groups of at least `shards` parameters and `cap` elements,
// if there are enough: a shorter rest joins the last group.
std::vector<std::vector<int>> CutWhole(const std::vector<ParameterSpec>& specs,
                                       const std::vector<int>& order,
                                       int shards, int64_t cap) {
  std::vector<std::vector<int>> groups;
  int64_t elements = cap;
  for (int index : order) {
    if (groups.empty() ||
        (elements >= cap && static_cast<int>(groups.back().size()) >= shards)) {
      groups.emplace_back();
      elements = 0;
    }
    groups.back().push_back(index);
    elements += specs[index].numel();
  }
  if (groups.size() > 1 && static_cast<int>(groups.back().size()) < shards) {
    const std::vector<int> rest = std::move(groups.back());
    groups.pop_back();
    groups.back().insert(groups.back().end(), rest.begin(), rest.end());
  }
  return groups;
}

}  // namespace

std::vector<ParameterSpec> StoredSpecs(const Model& model,
                                       c10::ScalarType stored) {
  std::vector<ParameterSpec> specs = model.parameters();
  const auto element = static_cast<int64_t>(c10::elementSize(stored));
  for (int i = 0; i < static_cast<int>(specs.size()); ++i) {
    const int64_t bytes = model.PackedBytes(i);
    if (bytes > 0) specs[i].shape = {(bytes + element - 1) / element};
  }
  return specs;
}

LayoutRules RulesOf(const Model& model, const Optimizer* optimizer) {
  LayoutRules rules;
  if (optimizer == nullptr) return rules;
  // Both are powers of two.
  for (const OptimizerStateSpec& state : optimizer->state_specs()) {
    if (state.per_parameter == 0) {
      rules.multiple = std::max(rules.multiple, state.block);
    }
  }
  const std::vector<ParameterSpec>& specs = model.parameters();
  for (int i = 0; i < static_cast<int>(specs.size()); ++i) {
    if (!specs[i].trainable || !optimizer->NeedsWhole(model, i)) continue;
    rules.whole.resize(specs.size());
    rules.whole[i] = true;
  }
  return rules;
}

FlatLayout LayOut(const std::vector<ParameterSpec>& specs,
                  const std::vector<int>& order, int64_t multiple) {
  FlatLayout layout;
  for (int index : order) {
    const int64_t length = specs[index].numel();
    layout.ranges.push_back({index, 0, length, layout.numel});
    layout.numel += RoundUp(length, multiple);
  }
  return layout;
}

FlatLayout LayOutWhole(const std::vector<ParameterSpec>& specs,
                       std::vector<int> order, int64_t multiple,
                       std::vector<int64_t>* loads) {
  const size_t shards = loads->size();
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return specs[a].numel() > specs[b].numel();
  });
  std::vector<std::vector<int>> parts(shards);
  std::vector<int64_t> filled(shards, 0);
  for (int index : order) {
    size_t least = 0;
    for (size_t s = 1; s < shards; ++s) {
      if (std::make_pair(filled[s], (*loads)[s]) <
          std::make_pair(filled[least], (*loads)[least])) {
        least = s;
      }
    }
    parts[least].push_back(index);
    filled[least] += RoundUp(specs[index].numel(), multiple);
    (*loads)[least] += specs[index].numel();
  }
  const int64_t length = *std::max_element(filled.begin(), filled.end());
  FlatLayout layout;
  for (const std::vector<int>& part : parts) {
    for (ParameterRange range : LayOut(specs, part, multiple).ranges) {
      range.offset += layout.numel;
      layout.ranges.push_back(range);
    }
    layout.numel += length;
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

std::vector<int> BucketOfEach(const std::vector<Bucket>& buckets,
                              size_t count) {
  std::vector<int> bucket_of(count, 0);
  for (size_t b = 0; b < buckets.size(); ++b) {
    for (int index : buckets[b].parameters) {
      bucket_of[index] = static_cast<int>(b);
    }
  }
  return bucket_of;
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

void PadBuckets(int shards, FlatLayout* layout, std::vector<Bucket>* buckets,
                int64_t multiple) {
  multiple *= shards;
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

std::vector<Bucket> LayOutBuckets(const std::vector<ParameterSpec>& specs,
                                  const LayoutRules& rules, int shards,
                                  int64_t first, int64_t cap,
                                  FlatLayout* layout) {
  std::vector<int> cut, whole;
  for (int index : BackwardOrder(specs, /*trainable=*/true)) {
    (rules.Whole(index) ? whole : cut).push_back(index);
  }
  *layout = LayOut(specs, cut, rules.multiple);
  std::vector<Bucket> buckets = CutBuckets(*layout, first, cap);
  PadBuckets(shards, layout, &buckets, rules.multiple);
  if (whole.empty()) return buckets;

  std::vector<int64_t> loads(shards, 0);
  for (std::vector<int>& group : CutWhole(specs, whole, shards, cap)) {
    const FlatLayout part = LayOutWhole(specs, group, rules.multiple, &loads);
    for (ParameterRange range : part.ranges) {
      range.offset += layout->numel;
      layout->ranges.push_back(range);
    }
    buckets.push_back(
        {layout->numel, layout->numel + part.numel, std::move(group)});
    layout->numel += part.numel;
  }
  // A bucket's offset doesn't matter, but when its last gradient comes does:
  // buckets are reduced in order.
  std::sort(buckets.begin(), buckets.end(),
            [](const Bucket& a, const Bucket& b) {
              return a.parameters.back() > b.parameters.back();
            });
  return buckets;
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

std::pair<int64_t, int64_t> RankSlice(int64_t numel, int rank, int size,
                                      int64_t multiple) {
  const int64_t share = RoundUp(numel / size, multiple);
  const int64_t begin = std::min(numel, share * rank);
  const int64_t end =
      rank + 1 == size ? numel : std::min(numel, share * (rank + 1));
  return {begin, end};
}

}  // namespace capstan
