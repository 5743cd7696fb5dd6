// SPDX-License-Identifier: Apache-2.0
#include "datasets/stream/lanes.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/random.h"

namespace capstan::stream {
namespace {

constexpr int64_t kLeastCells = 16;

// Sizes and lanes multiply beyond 64 bits.
__extension__ using Wide = unsigned __int128;

int64_t Share(int64_t whole, int64_t part, int64_t parts) {
  return static_cast<int64_t>(static_cast<Wide>(whole) * part / parts);
}

}  // namespace

int64_t LanesOf(const std::vector<Shard>& shards, int64_t wanted) {
  int64_t cells = 0;
  int64_t bytes = 0;
  for (const Shard& shard : shards) {
    cells += shard.cells;
    // Packed shards have smaller cells, and cells of small shards are small.
    bytes += shard.format == Format::kParquet ? shard.weight : shard.bytes;
  }
  cells = std::min(cells, bytes / kCellBytes);
  return std::max<int64_t>(1, std::min(wanted, cells / kLeastCells));
}

std::vector<std::vector<CellRun>> LanesOfEpoch(const std::vector<Shard>& shards,
                                               const LaneOrder& order,
                                               int64_t epoch) {
  const auto count = static_cast<int64_t>(shards.size());
  const uint64_t key =
      RandomKey(order.seed, absl::StrCat("stream shards ", epoch));
  int64_t weight = 0;
  for (const Shard& shard : shards) weight += shard.weight;
  std::vector<std::vector<CellRun>> lanes(order.lanes);
  int64_t begin = 0;  // of the shard in what is cut
  int64_t lane = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = order.shuffle ? PermutedIndex(key, i, count) : i;
    const Shard& shard = shards[at];
    int64_t first = 0;
    while (first < shard.cells) {
      const int64_t end = Share(weight, lane + 1, order.lanes);
      const int64_t last =
          lane + 1 == order.lanes || end >= begin + shard.weight
              ? shard.cells
              : std::max(first, Share(shard.cells, end - begin, shard.weight));
      if (last > first) lanes[lane].push_back({at, first, last - first});
      first = last;
      if (first < shard.cells || end == begin + shard.weight) ++lane;
      lane = std::min(lane, order.lanes - 1);
    }
    begin += shard.weight;
  }
  return lanes;
}

}  // namespace capstan::stream
