// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_TRACK_RUN_FOR_TEST_H_
#define CAPSTAN_DESK_TRACK_RUN_FOR_TEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "desk/track/sink.h"

namespace capstan::track {

inline TrackedRun RunIn(const std::string& folder) {
  TrackedRun run;
  run.id = "0123456789abcdef";
  run.folder = folder;
  run.name = "a run";
  run.project = "a project";
  run.start_time = 1.7e9;
  run.settings = {{"train.max_steps", "100"}};
  return run;
}

// Steps from `first` to `last`, with the loss step + 0.5.
inline std::vector<Row> Rows(int64_t first, int64_t last) {
  std::vector<Row> rows;
  for (int64_t step = first; step <= last; ++step) {
    Row row;
    row.step = step;
    row.time = 1.7e9 + static_cast<double>(step);
    row.metrics = {{"loss", static_cast<double>(step) + 0.5}};
    rows.push_back(row);
  }
  return rows;
}

}  // namespace capstan::track

#endif  // CAPSTAN_DESK_TRACK_RUN_FOR_TEST_H_
