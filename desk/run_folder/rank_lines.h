// SPDX-License-Identifier: Apache-2.0
//
// ranks/rank-NNNNN.jsonl, what each rank writes of itself; docs/runs.md has the
// keys.
#ifndef CAPSTAN_DESK_RUN_FOLDER_RANK_LINES_H_
#define CAPSTAN_DESK_RUN_FOLDER_RANK_LINES_H_

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace capstan {

// The paths of a run's files, by rank.
std::map<int, std::string> RankFiles(const std::string& folder);

// The line with which a process of the rank begins. 0: the line lacks it.
struct RankFacts {
  int rank = 0;
  int world_size = 0;
  std::string host;
  std::string device;
  double cores = 1.0;  // that it may use
  double threads = 1.0;
  bool bound = false;  // to cores of its own
  int64_t restart = 0;
  int64_t first_step = 0;  // how many were done before it began
  int64_t micro_batch_size = 0;
  // Until it was ready, with its launcher.
  double ready_seconds = 0.0;
  double ready_cpu_seconds = 0.0;
  double ready_read_bytes = 0.0;
};

// Any other line, or a sum of lines.
struct RankTimes {
  double steps = 0.0;
  double step_seconds = 0.0;
  double data = 0.0;
  double rollout = 0.0;
  double forward = 0.0;
  double backward = 0.0;
  double optimizer = 0.0;
  double exposed = 0.0;
  double rest = 0.0;
  double outside = 0.0;
  double off_core = 0.0;
  double runqueue_seconds = 0.0;
  double cpu_seconds = 0.0;
  double steal_seconds = 0.0;
  double iowait_seconds = 0.0;
  double major_faults = 0.0;
  double read_bytes = 0.0;
  std::map<std::string, double> actions;

  void Add(const RankTimes& other);
  void Divide(double by);
  // Of the steps and of what is between them.
  double wall() const { return step_seconds + outside; }
  // What the rank does itself in its steps.
  double own() const { return step_seconds - exposed; }
};

// Means per step of a process's `lines` lines, by their sum and that of all but
// the first, whose steps are slow anyway: it counts only if there are few.
RankTimes MeanPerStep(int64_t lines, const RankTimes& all,
                      const RankTimes& without_first);

// `line` is any JSON: a process that was killed leaves half a line.
bool IsRankFacts(const nlohmann::ordered_json& line);
RankFacts RankFactsOf(const nlohmann::ordered_json& line);
// What the line lacks becomes `missing`.
RankTimes RankTimesOf(const nlohmann::ordered_json& line, double missing = 0.0);

}  // namespace capstan

#endif  // CAPSTAN_DESK_RUN_FOLDER_RANK_LINES_H_
