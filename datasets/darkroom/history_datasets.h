// SPDX-License-Identifier: Apache-2.0
//
// The datasets of a task's group, and what they may hold.
#ifndef CAPSTAN_DATASETS_DARKROOM_HISTORY_DATASETS_H_
#define CAPSTAN_DATASETS_DARKROOM_HISTORY_DATASETS_H_

#include <cstdint>
#include <vector>

#include "datasets/darkroom/history_file.h"
#include "plugins/algorithm_distillation/darkroom.h"

namespace capstan::darkroom {

struct Dataset {
  const char* name;
  int rank;  // 3: [T, S, 2], 2: [T, S]
  std::vector<uint8_t> History::*values;
  bool is_bool;
  const char* what;  // a value
};

inline constexpr Dataset kDatasets[] = {
    {"states", 3, &History::states, false, "a state"},
    {"actions", 2, &History::actions, false, "an action"},
    {"rewards", 2, &History::rewards, false, "a reward"},
    {"next_states", 3, &History::next_states, false, "a state"},
    {"dones", 2, &History::dones, true, "a bool"},
    {"compress_markers", 2, &History::compress_markers, false, "a marker"},
};
inline constexpr const Dataset& kStates = kDatasets[0];
inline constexpr const Dataset& kMarkers = kDatasets[5];

inline bool IsMarkers(const Dataset& dataset) {
  return dataset.values == kMarkers.values;
}

// The exclusive upper bound of a dataset's values.
inline int Bound(const Dataset& dataset, const Room& room) {
  if (dataset.rank == 3) return room.size;
  if (dataset.values == &History::actions) return kActions;
  return IsMarkers(dataset) ? 3 : 2;
}

// What a dataset of so many values may take, whatever its file says: deflate
// makes at most 1032 bytes of one, other filters more of nothing but zeros.
constexpr uint64_t kMostBytesPerStoredByte = 2048;
constexpr uint64_t kAlwaysFine = 1 << 20;
}  // namespace capstan::darkroom

#endif  // CAPSTAN_DATASETS_DARKROOM_HISTORY_DATASETS_H_
