// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_STRATEGIES_COMMON_FLAT_LAYOUT_H_
#define CAPSTAN_STRATEGIES_COMMON_FLAT_LAYOUT_H_

#include <c10/core/ScalarType.h>

#include <utility>
#include <vector>

#include "plugins/sdk/model.h"
#include "plugins/sdk/optimizer.h"

namespace capstan {

// Parameters start at multiples of this many elements, so that each is aligned
// for vector instructions in any dtype.
constexpr int64_t kFlatAlignment = 32;

// The parameters as flat buffers of `stored`, the compute dtype, hold them: a
// packed one (Model::PackedBytes) as as many elements as its bytes
// fill. Layouts and ranges are made of these.
std::vector<ParameterSpec> StoredSpecs(const Model& model,
                                       c10::ScalarType stored);

// An optimizer's constraints on a layout.
struct LayoutRules {
  // Parameters and slices start at multiples of this many elements.
  int64_t multiple = kFlatAlignment;
  std::vector<bool> whole;  // by parameter: not to be cut; empty: none
  bool Whole(int parameter) const { return !whole.empty() && whole[parameter]; }
};

// `optimizer` may be null: default rules.
LayoutRules RulesOf(const Model& model, const Optimizer* optimizer);

// The offsets of whole parameters in a flat buffer.
struct FlatLayout {
  std::vector<ParameterRange> ranges;  // ascending by offset
  int64_t numel = 0;                   // padding included
};

// Lays out parameters `order` (indices into specs) one after another.
FlatLayout LayOut(const std::vector<ParameterSpec>& specs,
                  const std::vector<int>& order,
                  int64_t multiple = kFlatAlignment);

// Lays them out so that cutting the layout into loads.size() equal shards cuts
// no parameter. Each parameter, the largest first, goes to the emptiest shard;
// ties go to the shard of least load. `loads` counts each shard's elements over
// all calls.
FlatLayout LayOutWhole(const std::vector<ParameterSpec>& specs,
                       std::vector<int> order, int64_t multiple,
                       std::vector<int64_t>* loads);

// Trainable (or frozen) parameters from the last used in forward to the first:
// the order in which backward finishes their gradients, except that those of
// one graph node finish together. Models list parameters in the order of first
// use, so it is known before the first step and equal on all ranks
// (tests/conformance/bucket_order_test).
std::vector<int> BackwardOrder(const std::vector<ParameterSpec>& specs,
                               bool trainable);

// A slice [begin, end) of a flat buffer that is communicated in one piece:
// whole parameters and their padding.
struct Bucket {
  int64_t begin = 0;
  int64_t end = 0;
  std::vector<int> parameters;
  int64_t numel() const { return end - begin; }
};

// The bucket of each of `count` parameters; 0 for those in none.
std::vector<int> BucketOfEach(const std::vector<Bucket>& buckets, size_t count);

// Cuts a layout into buckets of at most `cap` elements (a larger parameter gets
// a bucket of its own). The first has at most `first` elements: it is ready
// soonest, so that communication starts early.
std::vector<Bucket> CutBuckets(const FlatLayout& layout, int64_t first,
                               int64_t cap);

// Pads buckets, given in the order of the layout, so that each can be cut into
// `shards` equal parts that start at multiples of `multiple`; moves the ranges
// of `layout` accordingly.
void PadBuckets(int shards, FlatLayout* layout, std::vector<Bucket>* buckets,
                int64_t multiple = kFlatAlignment);

// All of the above for the trainable parameters: buckets that `shards` ranks
// can share, in the order in which backward completes them. Parameters that
// must stay whole get separate buckets, of at least `shards` parameters each if
// there are enough: with fewer, the other shards would be padding.
std::vector<Bucket> LayOutBuckets(const std::vector<ParameterSpec>& specs,
                                  const LayoutRules& rules, int shards,
                                  int64_t first, int64_t cap,
                                  FlatLayout* layout);

// The ranges within [begin, end) of a layout, with offsets relative to `begin`.
std::vector<ParameterRange> CutRanges(const FlatLayout& layout, int64_t begin,
                                      int64_t end);

// Rank `rank`'s slice of [0, numel) cut into `size` nearly equal slices, at
// multiples of `multiple`.
std::pair<int64_t, int64_t> RankSlice(int64_t numel, int rank, int size,
                                      int64_t multiple = kFlatAlignment);

}  // namespace capstan

#endif  // CAPSTAN_STRATEGIES_COMMON_FLAT_LAYOUT_H_
