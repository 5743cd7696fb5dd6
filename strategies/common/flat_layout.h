// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_STRATEGIES_COMMON_FLAT_LAYOUT_H_
#define CAPSTAN_STRATEGIES_COMMON_FLAT_LAYOUT_H_

#include <vector>

#include "plugins/sdk/model.h"
#include "plugins/sdk/optimizer.h"

namespace capstan {

// Parameters begin at multiples of this many elements, so that each is aligned
// for vector instructions in any dtype.
constexpr int64_t kFlatAlignment = 32;

// Where whole parameters lie in a flat buffer.
struct FlatLayout {
  std::vector<ParameterRange> ranges;  // ascending by offset
  int64_t numel = 0;                   // padding included
};

// Lays out the parameters `order` (indices into specs) one after another.
FlatLayout LayOut(const std::vector<ParameterSpec>& specs,
                  const std::vector<int>& order);

// Trainable (or frozen) parameters from the last used in forward to the first:
// about the order in which backward finishes their gradients.
std::vector<int> BackwardOrder(const std::vector<ParameterSpec>& specs,
                               bool trainable);

// A contiguous slice [begin, end) of a flat buffer that is communicated at
// once, made of whole parameters (and their padding).
struct Bucket {
  int64_t begin = 0;
  int64_t end = 0;
  std::vector<int> parameters;
};

// Cuts a layout into buckets of at most `cap_bytes` each (a larger parameter
// gets one of its own), the first at most `first_bytes`: it is ready soonest,
// so communication starts early.
std::vector<Bucket> CutBuckets(const FlatLayout& layout, int64_t element_bytes,
                               int64_t first_bytes, int64_t cap_bytes);

// Rank `rank`'s part of [0, numel) cut into `size` nearly equal parts.
std::pair<int64_t, int64_t> RankSlice(int64_t numel, int rank, int size);

}  // namespace capstan

#endif  // CAPSTAN_STRATEGIES_COMMON_FLAT_LAYOUT_H_
