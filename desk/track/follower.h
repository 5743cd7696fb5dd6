// SPDX-License-Identifier: Apache-2.0
//
// Reads a run's metrics.jsonl and events.jsonl as they grow.
#ifndef CAPSTAN_DESK_TRACK_FOLLOWER_H_
#define CAPSTAN_DESK_TRACK_FOLLOWER_H_

#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "desk/run_folder/line_follower.h"

namespace capstan::track {

// A line of events.jsonl.
struct Event {
  double time = 0.0;  // Unix seconds
  int64_t step = 0;
  std::string kind;
  std::string text;
};

// What a run has written of one step: its own line and those of evaluations
// after it.
struct Row {
  int64_t step = 0;
  double time = 0.0;  // Unix seconds, of its first line
  // In the order of the lines. Not a number: null there, or true and false as 1
  // and 0.
  std::vector<std::pair<std::string, double>> metrics;
  std::vector<Event> events;  // of this step, and of those before without a row
  // It has only what came once the step was handed out: the evaluation that a
  // run which was stopped after the step makes when it goes on.
  bool late = false;

  absl::optional<double> Get(absl::string_view name) const;
};

// A run is known by its first line, whose times no other run has. A resumed run
// cuts its file to the checkpoint's step and takes steps again: those that were
// handed out aren't a second time, but for metrics that the last of them
// lacked. One thread.
class Follower {
 public:
  explicit Follower(const std::string& folder);

  // Reads up to a few megabytes of what is new, and returns the rows that are
  // complete, each step once, in ascending order: those that a line of a later
  // step follows. Starts over if the file is another run's now (id()).
  std::vector<Row> Poll();
  // Whether Poll has left something that it could have read.
  bool more() const { return more_; }
  // The step whose lines may not all be there, unless it was handed out.
  const absl::optional<Row>& newest() const { return newest_; }
  // Hands that out: the run has ended.
  absl::optional<Row> TakeNewest();

  // 16 hexadecimal digits; "" before the first line.
  const std::string& id() const { return id_; }
  const std::string& folder() const { return folder_; }
  // All that there were so far.
  const std::vector<Event>& events() const { return events_; }
  // When the run's processes were started, resumed or started again: what goes
  // by before the next line isn't a step's time.
  const std::vector<double>& begins() const { return begins_; }
  // Ranks of the run's newest process; 0: unknown.
  int world_size() const { return world_size_; }

 private:
  void ReadEvents();
  void ReadWorldSize();
  // `first`: the first line of a file that was begun anew.
  void StartOver(absl::string_view first);
  void Add(absl::string_view line, std::vector<Row>* rows);
  void Complete(std::vector<Row>* rows);

  const std::string folder_;
  LineFollower metrics_;
  LineFollower event_lines_;
  LineFollower rank_lines_;  // of rank 0
  bool more_ = false;
  bool begun_anew_ = false;  // metrics.jsonl, of which no line is there yet
  std::string first_line_;
  std::string id_;
  double clock_ = 0.0;  // for lines without a time
  int64_t handed_out_ = std::numeric_limits<int64_t>::min();  // a step
  std::set<std::string> handed_out_names_;                    // of its metrics
  absl::optional<Row> newest_;
  std::vector<Event> events_;
  std::vector<double> begins_;
  size_t next_event_ = 0;  // that no row has
  int world_size_ = 0;
};

}  // namespace capstan::track

#endif  // CAPSTAN_DESK_TRACK_FOLLOWER_H_
