// SPDX-License-Identifier: Apache-2.0
//
// What a run's folder tells of it, while it runs and afterwards.
#ifndef CAPSTAN_DESK_WATCH_RUN_READER_H_
#define CAPSTAN_DESK_WATCH_RUN_READER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "desk/run_folder/line_follower.h"
#include "desk/watch/curves.h"
#include "desk/watch/rank_times.h"

namespace capstan {

class MetricsLines;
struct MetricsLine;

struct WatchedEvent {
  double time = 0.0;  // Unix seconds; 0: unknown
  int64_t step = 0;
  std::string kind;  // "save"
  std::string text;
  double seconds = 0.0;
  std::string id;  // of the control that it answers
};

struct WatchedSample {
  int64_t step = 0;
  std::string prompt;
  std::string text;
};

// How often each part of what is known of a run has changed. The curves of a
// step before `steps` change only if `restarts` does, too.
struct RunVersions {
  int64_t curves = 0;
  int64_t restarts = 0;
  int64_t ranks = 0;
  int64_t events = 0;
  int64_t samples = 0;
  int64_t config = 0;
  int64_t summary = 0;
};

// Reads metrics.jsonl, events.jsonl, generations.jsonl, ranks/, config.pbtxt
// and summary.json, and keeps what memory allows: curves in buckets, the latest
// events and samples. What is missing or damaged is left out. One thread.
class RunReader {
 public:
  // kFailed: no process of it is left, and none has said how it ended.
  enum class State { kReading, kWaiting, kRunning, kSilent, kFailed, kEnded };

  static constexpr int64_t kBuckets = 2048;
  static constexpr size_t kMostEvents = 2000;
  static constexpr size_t kMostSampleBytes = size_t{1} << 20;
  static constexpr int kMostRanks = 1024;

  // `name`: for people.
  RunReader(std::string folder, std::string name);
  ~RunReader();

  // Reads what is new. Returns whether more can be read at once.
  bool Poll();

  const std::string& folder() const { return folder_; }
  const std::string& name() const { return name_; }
  const RunVersions& versions() const { return versions_; }

  // By step: the numbers of metrics.jsonl, by their keys.
  const Curves& curves() const { return curves_; }
  // The latest value of each, without "step" and "time".
  std::map<std::string, double> Latest() const;
  const std::map<int, WatchedRank>& ranks() const { return ranks_; }
  const std::deque<WatchedEvent>& events() const { return events_; }
  const std::deque<WatchedSample>& samples() const { return samples_; }
  const std::string& config() const { return config_; }
  const std::map<std::string, std::string>& fields() const { return fields_; }
  const nlohmann::json& summary() const { return summary_; }

  State state() const;
  int64_t step() const { return step_; }
  // Of metrics.jsonl, that are left out.
  int64_t unreadable_lines() const;
  // As its config says, or as it was told since; 0: unknown.
  int64_t max_steps() const;
  // Negative: unknown.
  double SecondsPerStep() const;
  double SecondsLeft() const;
  // Since a file last changed; negative: none has.
  double SecondsSilent() const;
  // Whether it reads control.jsonl.
  bool control() const;

  // A part of metrics.jsonl: from `first`, where the line of a step is or one
  // before it, and to `settled` at least, as no step is taken again behind it.
  struct Place {
    int64_t first = 0;
    int64_t settled = 0;
  };
  Place PlaceOf(int64_t step) const;
  // The curves of steps in [from, to] in up to `points` buckets: reads that
  // part of the metrics.jsonl in `folder` again, from PlaceOf(from) on.
  static Curves Detail(const std::string& folder, const Place& place,
                       int64_t from, int64_t to, int64_t points);

 private:
  void PollMetrics();
  void PollControl();
  void PollEvents();
  void AddEvent(const nlohmann::json& line);
  void PollSamples();
  void PollRanks();
  void PollFiles();
  void AddMetrics(const MetricsLine& line);
  void GoBack(int64_t step, int64_t offset);
  void Restart();

  const std::string folder_;
  const std::string name_;
  RunVersions versions_;

  const std::unique_ptr<MetricsLines> metrics_;
  LineFollower metrics_file_;
  bool behind_ = true;
  Curves curves_{kBuckets};
  int64_t step_ = 0;
  // Some steps, in order, and where in metrics.jsonl each one's line is.
  std::vector<std::pair<int64_t, int64_t>> places_;
  int64_t settled_ = 0;  // where the newest line is whose step went back
  int64_t lines_ = 0;
  // Of the latest steps: their numbers and times.
  std::deque<std::pair<int64_t, double>> pace_;

  LineFollower control_file_;
  // The ends that were asked for, by the requests' ids, and the one in force;
  // 0: the config's.
  std::map<std::string, int64_t> asked_ends_;
  int64_t end_ = 0;
  LineFollower events_file_;
  std::deque<WatchedEvent> events_;
  LineFollower samples_file_;
  std::deque<WatchedSample> samples_;
  size_t sample_bytes_ = 0;
  std::map<int, WatchedRank> ranks_;
  // Those that the newest process no longer has; a later one may.
  std::map<int, WatchedRank> gone_ranks_;
  std::map<int, LineFollower> rank_files_;

  std::string config_;
  std::map<std::string, std::string> fields_;
  nlohmann::json summary_;
  // When these files last changed.
  double config_time_ = 0.0;
  double summary_time_ = 0.0;
  bool has_begun_ = false;  // again, since the summary was read
  double changed_ = 0.0;
  absl::optional<bool> held_;  // its lock, before the files were read
};

}  // namespace capstan

#endif  // CAPSTAN_DESK_WATCH_RUN_READER_H_
