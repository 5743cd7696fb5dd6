// SPDX-License-Identifier: Apache-2.0
//
// Where the ranks' time goes, and who is late.
#ifndef CAPSTAN_DESK_WATCH_RANK_TIMES_H_
#define CAPSTAN_DESK_WATCH_RANK_TIMES_H_

#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "desk/run_folder/rank_lines.h"
#include "desk/watch/curves.h"

namespace capstan {

// What a rank of its own does in a step. A step has, besides, "exposed": it
// waits for other ranks.
constexpr const char* kWorkParts[] = {"data",     "rollout",   "forward",
                                      "backward", "optimizer", "rest"};

// What ranks/rank-00003.jsonl has.
struct WatchedRank {
  static constexpr int64_t kBuckets = 128;

  int rank = 0;
  RankFacts facts;  // of its newest process
  // Of a step: the seconds of kWorkParts; further "cpu_cores", "steal",
  // "iowait" (shares of its cores' time) and "rss_bytes".
  Curves curves{kBuckets};
  // Sums of the lines of its newest process, and of all but their first.
  int64_t lines = 0;
  RankTimes all;
  RankTimes without_first;
  // Seconds between steps by what was done in them: "saving".
  std::map<std::string, double> actions;

  // Of a line of the file.
  void Add(const nlohmann::ordered_json& line);
  // By name, as `curves` has them, and "exposed" and "outside"; without those
  // that aren't known. As why-slow has them.
  std::map<std::string, double> Means() const;
};

// A rank beside the others, in seconds a step.
struct RankRow {
  int rank = 0;
  // How much longer than the median rank it worked, by column, negative if
  // shorter; NaN: unknown. And the part in which it lost most (kWorkParts).
  std::vector<double> late;
  std::vector<int> cause;
  double latest_share = 0.0;  // of the columns in which it was the latest
  // Over the newest process's steps:
  std::map<std::string, double> means;
  double mean_late = 0.0;
  int mean_cause = 0;
};

struct RankTimeline {
  int64_t width = 1;  // steps a column
  int64_t columns = 0;
  std::vector<RankRow> rows;
  double median_work = 0.0;  // by the rows' means

  // The row that is late in all, by 5 % of a step's work or more; null if none.
  const RankRow* Late() const;
};

RankTimeline TimelineOf(const std::map<int, WatchedRank>& ranks);

// "rank 3 on node1 is late: it works 12.1 ms (8 %) longer a step than the
// median rank, most of it in data; the others wait for it"; "" if none is.
std::string LateText(const std::map<int, WatchedRank>& ranks,
                     const RankTimeline& timeline);

// The timeline of up to 64 ranks, those that are latest, and "usage": over all
// ranks, curves of memory, cores and what disturbs.
nlohmann::json RanksJson(const std::map<int, WatchedRank>& ranks);

}  // namespace capstan

#endif  // CAPSTAN_DESK_WATCH_RANK_TIMES_H_
