// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/finite.h"

#include <ATen/ops/aminmax.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

namespace capstan {
namespace {

// The largest number whose square is a float32.
const double kMostOfMasters = std::sqrt(std::numeric_limits<float>::max());
constexpr double kMostOfState = std::numeric_limits<double>::max();

// Whether no magnitude is above `most`. Both ends are NaN where any element is.
bool AllWithin(const at::Tensor& values, double most) {
  const auto [low, high] = at::aminmax(values);
  return low.item<double>() >= -most && high.item<double>() <= most;
}

}  // namespace

absl::optional<NonFiniteTensor> FindNonFinite(const CheckpointParts& parts) {
  absl::optional<NonFiniteTensor> first;
  const auto look = [&](const OwnedSlice& slice, const at::Tensor& tensor,
                        int kind) {
    const double most = kind == 0 ? kMostOfMasters : kMostOfState;
    if (slice.begin >= slice.end ||
        AllWithin(tensor.narrow(0, slice.begin, slice.end - slice.begin),
                  most)) {
      return;
    }
    for (const ParameterRange& range : parts.shards[slice.shard].ranges) {
      const int64_t low = std::max(slice.begin, range.offset);
      const int64_t high = std::min(slice.end, range.offset + range.length);
      if (low >= high || AllWithin(tensor.narrow(0, low, high - low), most))
        continue;
      if (!first.has_value() || std::tie(range.parameter, kind) <
                                    std::tie(first->parameter, first->kind)) {
        first = NonFiniteTensor{range.parameter, kind};
      }
    }
  };
  for (const OwnedSlice& slice : parts.owned) {
    look(slice, parts.shards[slice.shard].master, 0);
    const std::vector<at::Tensor>& state = (*parts.state)[slice.shard];
    for (size_t k = 0; k < state.size(); ++k) {
      look(slice, state[k], static_cast<int>(k) + 1);
    }
  }
  return first;
}

}  // namespace capstan
