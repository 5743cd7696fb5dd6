// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/replicas.h"

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/string_view.h"
#include "base/crc32c.h"
#include "cluster/comm/agree.h"
#include "trainer/checkpoint/state_kinds.h"
#include "trainer/optimizer/optimizer_state.h"

namespace capstan {
namespace {

template <typename Number>
uint32_t ChecksumOf(const std::vector<Number>& numbers) {
  return Crc32c({reinterpret_cast<const char*>(numbers.data()),
                 numbers.size() * sizeof(Number)});
}

// CRC-32C of the checksums of 1 MiB each, by all intra-op threads.
uint32_t HostDigest(const at::Tensor& elements) {
  constexpr int64_t kChunk = 1 << 20;
  const auto* const data = static_cast<const char*>(elements.const_data_ptr());
  const auto bytes = static_cast<int64_t>(elements.nbytes());
  std::vector<uint32_t> sums((bytes + kChunk - 1) / kChunk);
  at::parallel_for(
      0, static_cast<int64_t>(sums.size()), 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t at = i * kChunk;
          sums[i] = Crc32c(
              {data + at, static_cast<size_t>(std::min(kChunk, bytes - at))});
        }
      });
  return ChecksumOf(sums);
}

uint32_t DigestOf(const at::Tensor& elements) {
  return elements.device().is_cpu() ? HostDigest(elements)
                                    : DeviceDigest(elements);
}

// The ranks whose value isn't what most have; of as many, what the lowest rank
// has counts as right. Empty: all have the same.
std::vector<int> Minority(const std::vector<std::pair<int, uint64_t>>& values,
                          int* other) {
  std::map<uint64_t, int> counts;
  for (const auto& [rank, value] : values) ++counts[value];
  if (counts.size() < 2) return {};
  uint64_t most = values[0].second;
  for (const auto& [rank, value] : values) {
    if (counts[value] > counts[most]) most = value;
  }
  std::vector<int> ranks;
  *other = -1;
  for (const auto& [rank, value] : values) {
    if (value != most) {
      ranks.push_back(rank);
    } else if (*other < 0) {
      *other = rank;
    }
  }
  return ranks;
}

}  // namespace

uint32_t DeviceDigest(const at::Tensor& elements) {
  constexpr int64_t kChunk = int64_t{1} << 22;
  constexpr int64_t kMixer = 0x1E3779B97F4A7C15;
  const at::ScalarType bits = elements.element_size() == 1   ? at::kByte
                              : elements.element_size() == 2 ? at::kShort
                              : elements.element_size() == 4 ? at::kInt
                                                             : at::kLong;
  const at::Tensor numbers = elements.view(bits);
  const auto options = numbers.options().dtype(at::kLong);
  at::Tensor sum = at::zeros({}, options);
  for (int64_t begin = 0; begin < numbers.numel(); begin += kChunk) {
    const int64_t count = std::min(kChunk, numbers.numel() - begin);
    // Odd factors, so that no change of one element is lost modulo 2^64, which
    // look random, so that hardly any two changes cancel each other.
    at::Tensor factors = at::arange(begin + 1, begin + 1 + count, options);
    factors.mul_(kMixer);
    factors.bitwise_xor_(factors.bitwise_right_shift(31)).mul_(kMixer);
    factors.bitwise_or_(1);
    sum += factors.mul_(numbers.narrow(0, begin, count)).sum();
  }
  const auto whole = static_cast<uint64_t>(sum.item<int64_t>());
  return static_cast<uint32_t>(whole ^ (whole >> 32));
}

// From the shards of all ranks: where each parameter's ranges begin and end.
void Replicas::FindCommon(const CheckpointParts& parts) {
  ProcessGroup& group = *parts.group;
  struct Range {
    int64_t parameter = 0, begin = 0, end = 0;  // empty: none
  };
  std::vector<Range> mine;
  for (const OptimizerShard& shard : parts.shards) {
    for (const ParameterRange& range : shard.ranges) {
      if (range.length == 0) continue;  // it would end before it begins
      mine.push_back(
          {range.parameter, range.begin, range.begin + range.length});
    }
  }
  const std::vector<double> sizes =
      FromAllRanks(group, static_cast<double>(mine.size()));
  mine.resize(
      static_cast<size_t>(*std::max_element(sizes.begin(), sizes.end())));
  const std::vector<Range> all = AllGatherHost(group, mine);
  // By parameter and element: who begins and who ends there.
  struct Change {
    std::vector<int> begin, end;
  };
  std::map<int64_t, std::map<int64_t, Change>> changes;
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].begin == all[i].end) continue;
    const int rank = static_cast<int>(i / mine.size());
    auto& parameter = changes[all[i].parameter];
    parameter[all[i].begin].begin.push_back(rank);
    parameter[all[i].end].end.push_back(rank);
  }
  for (const auto& [parameter, at] : changes) {
    std::multiset<int> holders;
    int64_t begin = 0;
    for (const auto& [element, change] : at) {
      const std::set<int> different(holders.begin(), holders.end());
      if (different.size() > 1) {
        common_.push_back({static_cast<int>(parameter),
                           begin,
                           element,
                           {different.begin(), different.end()}});
      }
      for (const int rank : change.end) holders.erase(holders.find(rank));
      holders.insert(change.begin.begin(), change.begin.end());
      begin = element;
    }
  }
}

std::vector<uint64_t> Replicas::Digests(
    const CheckpointParts& parts, const std::vector<StateKind>& state) const {
  std::map<int, std::vector<size_t>> common;  // by parameter
  for (size_t c = 0; c < common_.size(); ++c) {
    common[common_[c].parameter].push_back(c);
  }
  const size_t kinds = state.size() + 1;
  std::vector<uint64_t> digests(common_.size() * kinds);
  const auto digest = [](const at::Tensor& elements) -> uint64_t {
    return elements.numel() == 0 ? 0 : uint64_t{1} + DigestOf(elements);
  };
  for (size_t s = 0; s < parts.shards.size(); ++s) {
    const OptimizerShard& shard = parts.shards[s];
    for (size_t i = 0; i < shard.ranges.size(); ++i) {
      const ParameterRange& range = shard.ranges[i];
      for (const size_t c : common[range.parameter]) {
        const int64_t low = range.offset +
                            std::max(common_[c].begin, range.begin) -
                            range.begin;
        const int64_t high =
            range.offset +
            std::min(common_[c].end, range.begin + range.length) - range.begin;
        if (low >= high) continue;
        uint64_t* const mine = &digests[c * kinds];
        for (size_t k = 0; k < state.size(); ++k) {
          const StatePart part = StatePartOf(state[k].shape, shard.ranges,
                                             static_cast<int>(i), low, high);
          mine[k] =
              digest(state[k].tensors[s].narrow(0, part.offset, part.length));
        }
        // With local_steps() it is of the replica's own masters.
        if (shard.working.defined() && !LocalSteps(parts)) {
          mine[kinds - 1] = digest(shard.working.narrow(0, low, high - low));
        }
      }
    }
  }
  return digests;
}

// `mine` is Digests'.
absl::optional<ReplicaDifference> Replicas::FirstDifference(
    const CheckpointParts& parts, const std::vector<StateKind>& state,
    const std::vector<uint64_t>& mine) const {
  const std::vector<uint64_t> all = AllGatherHost(*parts.group, mine);
  const size_t kinds = state.size() + 1;
  // The masters, their working copy, then the state.
  std::vector<size_t> order = {0, kinds - 1};
  for (size_t k = 1; k < state.size(); ++k) order.push_back(k);
  for (const size_t k : order) {
    for (size_t c = 0; c < common_.size(); ++c) {
      std::vector<std::pair<int, uint64_t>> values;
      for (const int rank : common_[c].holders) {
        values.emplace_back(rank, all[rank * mine.size() + c * kinds + k]);
      }
      ReplicaDifference difference;
      difference.ranks = Minority(values, &difference.other);
      if (difference.ranks.empty()) continue;
      difference.parameter = (*parts.specs)[common_[c].parameter].name;
      if (k > 0 && k < state.size()) difference.kind = state[k].name();
      return difference;
    }
  }
  return absl::nullopt;
}

absl::StatusOr<absl::optional<ReplicaDifference>> Replicas::Compare(
    const CheckpointParts& parts) {
  absl::optional<ReplicaDifference> difference;
  ProcessGroup& group = *parts.group;
  if (group.size() == 1) return difference;
  CAPSTAN_RETURN_IF_ERROR(CatchAll([&] {
    if (!std::exchange(found_, true)) FindCommon(parts);
    return absl::OkStatus();
  }));
  if (common_.empty()) return difference;
  std::vector<StateKind> state;
  std::vector<uint64_t> mine;
  const absl::Status status = CatchAll([&] {
    for (StateKind& kind : AllKinds(parts)) {
      if (!kind.of_replica) state.push_back(std::move(kind));
    }
    mine = Digests(parts, state);
    return absl::OkStatus();
  });
  CAPSTAN_RETURN_IF_ERROR(
      Agree(group, status, "compare what it holds with the others"));
  CAPSTAN_RETURN_IF_ERROR(CatchAll([&] {
    // One number for all that the same ranks hold; in detail only if that
    // differs.
    const size_t kinds = state.size() + 1;
    std::map<std::vector<int>, std::vector<uint64_t>> together;
    for (size_t c = 0; c < common_.size(); ++c) {
      std::vector<uint64_t>& digests = together[common_[c].holders];
      digests.insert(digests.end(), &mine[c * kinds], &mine[c * kinds] + kinds);
    }
    std::vector<uint32_t> brief;
    for (const auto& [holders, digests] : together) {
      brief.push_back(ChecksumOf(digests));
    }
    const std::vector<uint32_t> all = AllGatherHost(group, brief);
    bool differ = false;
    size_t g = 0;
    for (const auto& [holders, digests] : together) {
      for (const int rank : holders) {
        differ |=
            all[rank * brief.size() + g] != all[holders[0] * brief.size() + g];
      }
      ++g;
    }
    if (differ) difference = FirstDifference(parts, state, mine);
    return absl::OkStatus();
  }));
  return difference;
}

}  // namespace capstan
