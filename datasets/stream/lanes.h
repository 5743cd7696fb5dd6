// SPDX-License-Identifier: Apache-2.0
//
// Which cells a lane reads, in which order: a function of the shards, the
// number of lanes, the seed and the epoch alone.
#ifndef CAPSTAN_DATASETS_STREAM_LANES_H_
#define CAPSTAN_DATASETS_STREAM_LANES_H_

#include <cstdint>
#include <vector>

#include "datasets/stream/shard.h"

namespace capstan::stream {

// Neighbouring cells of a shard.
struct CellRun {
  int64_t shard = 0;
  int64_t first = 0;
  int64_t count = 0;
};

struct LaneOrder {
  int64_t lanes = 1;
  bool shuffle = false;
  uint64_t seed = 0;
};

// As many lanes as `wanted`, but each with at least 16 cells, so that lanes
// differ little in length; at least 1.
int64_t LanesOf(const std::vector<Shard>& shards, int64_t wanted);

// What each lane reads in an epoch: the shards, permuted if they are shuffled,
// one behind the other, are cut into parts of equal weight, at cells. So each
// cell is in one lane, and lanes are through at about the same time.
std::vector<std::vector<CellRun>> LanesOfEpoch(const std::vector<Shard>& shards,
                                               const LaneOrder& order,
                                               int64_t epoch);

}  // namespace capstan::stream

#endif  // CAPSTAN_DATASETS_STREAM_LANES_H_
