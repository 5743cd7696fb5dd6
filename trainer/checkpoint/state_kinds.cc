// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/state_kinds.h"

#include <ATen/ops/aminmax.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "trainer/optimizer/optimizer_state.h"

namespace capstan {
namespace {

// The largest number whose square is a float32.
const double kMostOfMasters = std::sqrt(std::numeric_limits<float>::max());
constexpr double kMostOfState = std::numeric_limits<double>::max();

// Whether no magnitude exceeds `most`; false for NaN, which aminmax propagates.
bool AllWithin(const at::Tensor& values, double most) {
  const auto [low, high] = at::aminmax(values);
  return low.item<double>() >= -most && high.item<double>() <= most;
}

// Integers, and 8-bit floats, which aren't checked here.
bool IsAlwaysFinite(const at::Tensor& tensor) {
  return !at::isFloatingType(tensor.scalar_type()) || tensor.element_size() < 2;
}

}  // namespace

std::string WithoutRank(const std::string& name) {
  absl::string_view rest = name;
  int rank = 0;
  if (!absl::ConsumePrefix(&rest, "rank.")) return name;
  const size_t point = rest.find('.');
  if (point == absl::string_view::npos ||
      !absl::SimpleAtoi(rest.substr(0, point), &rank)) {
    return name;
  }
  return std::string(rest.substr(point + 1));
}

std::vector<OwnedSlice> WholeShards(absl::Span<const OptimizerShard> shards) {
  std::vector<OwnedSlice> all;
  for (size_t s = 0; s < shards.size(); ++s) {
    all.push_back({static_cast<int>(s), 0, shards[s].master.numel()});
  }
  return all;
}

std::vector<OwnedSlice> ReplicaSlices(const CheckpointParts& parts) {
  return parts.strategy->replica_group() == nullptr
             ? WholeShards(parts.shards)
             : parts.strategy->ReplicaSlices();
}

std::vector<OwnedSlice> SlicesOf(const StateKind& kind,
                                 const CheckpointParts& parts) {
  return kind.of_replica ? ReplicaSlices(parts) : parts.owned;
}

absl::optional<NonFiniteTensor> FindNonFinite(const CheckpointParts& parts) {
  absl::optional<NonFiniteTensor> first;
  const auto order = [&](const NonFiniteTensor& found) {
    return std::make_tuple(IsStrategyKind(found.kind, parts), found.parameter,
                           found.kind);
  };
  const auto look = [&](const OwnedSlice& slice, const StateKind& kind,
                        int number) {
    const at::Tensor& tensor = kind.tensors[slice.shard];
    const bool master = number == 0 || WithoutRank(kind.name()) == kReplicaKind;
    const double most = master ? kMostOfMasters : kMostOfState;
    const auto within = [&](const StatePart& part) {
      return part.length == 0 ||
             AllWithin(tensor.narrow(0, part.offset, part.length), most);
    };
    // In one pass if possible; ranges are only needed to name the culprit.
    const StateShape& shape = kind.shape;
    const bool plain = shape.spec.block == 1 && shape.spec.per_parameter == 0 &&
                       shape.numels.empty();
    if (slice.begin >= slice.end || IsAlwaysFinite(tensor) ||
        (plain && within({0, slice.end - slice.begin, slice.begin}))) {
      return;
    }
    const std::vector<ParameterRange>& ranges =
        parts.shards[slice.shard].ranges;
    for (size_t i = 0; i < ranges.size(); ++i) {
      const ParameterRange& range = ranges[i];
      const int64_t low = std::max(slice.begin, range.offset);
      const int64_t high = std::min(slice.end, range.offset + range.length);
      if (low >= high ||
          within(StatePartOf(shape, ranges, static_cast<int>(i), low, high))) {
        continue;
      }
      const NonFiniteTensor found = {range.parameter, number};
      if (!first.has_value() || order(found) < order(*first)) first = found;
    }
  };
  const std::vector<StateKind> kinds = AllKinds(parts);
  for (size_t k = 0; k < kinds.size(); ++k) {
    for (const OwnedSlice& slice : SlicesOf(kinds[k], parts)) {
      look(slice, kinds[k], static_cast<int>(k));
    }
  }
  return first;
}

}  // namespace capstan
