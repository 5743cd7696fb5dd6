// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_WATCH_RUN_JSON_H_
#define CAPSTAN_DESK_WATCH_RUN_JSON_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/types/optional.h"
#include "desk/watch/run_reader.h"

namespace capstan {

// How many points the page draws of a curve, unless it looks closer.
constexpr int64_t kPoints = 500;

// What a page has been told of a run.
struct RunTold {
  RunVersions versions;
  int64_t step = 0;   // up to which it has curves
  int64_t width = 0;  // of their buckets
  std::string status;
};

// A run as the page wants it: "name", "folder", "status", and of "config",
// "summary", "events", "samples", "ranks" and "curves" those that have changed
// since `told`, which is brought up to date; all if it is empty. Null if
// nothing has changed. docs/watch.md lists the keys.
nlohmann::json RunJson(const RunReader& run, absl::optional<RunTold>* told);

// "running", "no news for 5:03"
std::string StateText(const RunReader& run);

}  // namespace capstan

#endif  // CAPSTAN_DESK_WATCH_RUN_JSON_H_
