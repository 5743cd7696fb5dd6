// SPDX-License-Identifier: Apache-2.0
#include "datasets/chat/mixture.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/random.h"

namespace capstan {
namespace chat {
namespace {

// Samples of an epoch beyond which weights are a mistake.
constexpr double kMostSamples = 1e15;

}  // namespace

absl::StatusOr<Mixture> Mixture::Create(absl::Span<const int64_t> sizes,
                                        absl::Span<const double> weights,
                                        uint64_t seed) {
  Mixture mixture;
  mixture.weighted_ = !weights.empty();
  mixture.sizes_.assign(sizes.begin(), sizes.end());
  mixture.order_key_ = RandomKey(seed, "chat.mixture.order");
  // Of the source that takes longest to be seen whole.
  double times = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    times = std::max(times, static_cast<double>(sizes[i]) / weights[i]);
  }
  double total = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    int64_t draws = sizes[i];
    if (mixture.weighted_) {
      const double exact = times * weights[i];
      total += exact;
      if (!(total < kMostSamples)) {
        return absl::InvalidArgumentError(
            absl::StrCat("the weights make an epoch of more than ",
                         kMostSamples, " samples: they are too far apart"));
      }
      // Rounding must not lose the last sample of the slowest source.
      draws =
          sizes[i] == 0 ? 0 : std::max<int64_t>(sizes[i], std::llround(exact));
    }
    const int64_t before = mixture.ends_.empty() ? 0 : mixture.ends_.back();
    mixture.ends_.push_back(before + draws);
    mixture.keys_.push_back(
        RandomKey(seed, absl::StrCat("chat.mixture.source.", i)));
  }
  return mixture;
}

Mixture::Draw Mixture::At(int64_t index) const {
  if (weighted_) index = PermutedIndex(order_key_, index, size());
  const size_t source =
      std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin();
  const int64_t draw = index - (source == 0 ? 0 : ends_[source - 1]);
  const int64_t size = sizes_[source];
  if (!weighted_) return {source, draw};
  // Each pass over a source has an order of its own.
  const uint64_t key = RandomKey(keys_[source], absl::StrCat(draw / size));
  return {source, PermutedIndex(key, draw % size, size)};
}

}  // namespace chat
}  // namespace capstan
