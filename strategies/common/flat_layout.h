// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_STRATEGIES_COMMON_FLAT_LAYOUT_H_
#define CAPSTAN_STRATEGIES_COMMON_FLAT_LAYOUT_H_

#include <utility>
#include <vector>

#include "plugins/sdk/model.h"
#include "plugins/sdk/optimizer.h"

namespace capstan {

// Parameters begin at multiples of this many elements, so that each is aligned
// for vector instructions in any dtype.
constexpr int64_t kFlatAlignment = 32;

// What an optimizer asks of a layout.
struct LayoutRules {
  // Parameters begin, and slices are cut, at multiples of this many elements.
  int64_t multiple = kFlatAlignment;
  std::vector<bool> whole;  // by parameter: not to be cut; empty: none
  bool Whole(int parameter) const { return !whole.empty() && whole[parameter]; }
};

// `optimizer` may be null: the rules are then the default ones.
LayoutRules RulesOf(const Model& model, const Optimizer* optimizer);

// Where whole parameters lie in a flat buffer.
struct FlatLayout {
  std::vector<ParameterRange> ranges;  // ascending by offset
  int64_t numel = 0;                   // padding included
};

// Lays out the parameters `order` (indices into specs) one after another.
FlatLayout LayOut(const std::vector<ParameterSpec>& specs,
                  const std::vector<int>& order,
                  int64_t multiple = kFlatAlignment);

// Lays them out so that, of the equal parts into which as many shards as
// `loads` has entries cut the layout, each holds whole parameters. Every
// parameter, the largest first, goes where there is least so far; between equal
// ones, to the shard of the least load, which counts the elements that a shard
// has been given over all calls.
FlatLayout LayOutWhole(const std::vector<ParameterSpec>& specs,
                       std::vector<int> order, int64_t multiple,
                       std::vector<int64_t>* loads);

// Trainable (or frozen) parameters from the last used in forward to the first:
// the order in which backward finishes their gradients, but for those of one
// node of the graph, which come together. A model gives its parameters in the
// order of first use, so this is known before the first step and the same on
// all ranks whatever their timing; PyTorch's DDP knows the order of
// registration only, and has to lay out its buckets anew after it has seen one
// step. tests/conformance/bucket_order_test holds it against a first step.
std::vector<int> BackwardOrder(const std::vector<ParameterSpec>& specs,
                               bool trainable);

// A contiguous slice [begin, end) of a flat buffer that is communicated at
// once, made of whole parameters (and their padding).
struct Bucket {
  int64_t begin = 0;
  int64_t end = 0;
  std::vector<int> parameters;
  int64_t numel() const { return end - begin; }
};

// Cuts a layout into buckets of at most `cap` elements each (a larger
// parameter gets one of its own), the first at most `first`: it is ready
// soonest, so communication starts early.
std::vector<Bucket> CutBuckets(const FlatLayout& layout, int64_t first,
                               int64_t cap);

// Widens buckets that are in the order of the layout so that each can be cut
// into `shards` equal parts that begin at multiples of `multiple`: moves the
// ranges of `layout` apart.
void PadBuckets(int shards, FlatLayout* layout, std::vector<Bucket>* buckets,
                int64_t multiple = kFlatAlignment);

// All of the above for the trainable parameters: buckets that `shards` ranks
// can share, in the order in which backward begins to fill them. Parameters
// that must stay whole have buckets of their own, of at least `shards`
// parameters if there are as many: with fewer, the others would hold padding.
std::vector<Bucket> LayOutBuckets(const std::vector<ParameterSpec>& specs,
                                  const LayoutRules& rules, int shards,
                                  int64_t first, int64_t cap,
                                  FlatLayout* layout);

// What lies in [begin, end) of a layout, with offsets from `begin` on.
std::vector<ParameterRange> CutRanges(const FlatLayout& layout, int64_t begin,
                                      int64_t end);

// Rank `rank`'s part of [0, numel) cut into `size` nearly equal parts, at
// multiples of `multiple`.
std::pair<int64_t, int64_t> RankSlice(int64_t numel, int rank, int size,
                                      int64_t multiple = kFlatAlignment);

}  // namespace capstan

#endif  // CAPSTAN_STRATEGIES_COMMON_FLAT_LAYOUT_H_
