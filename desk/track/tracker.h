// SPDX-License-Identifier: Apache-2.0
//
// Follows a run and keeps a target up to it.
#ifndef CAPSTAN_DESK_TRACK_TRACKER_H_
#define CAPSTAN_DESK_TRACK_TRACKER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "desk/track/alerts.h"
#include "desk/track/follower.h"
#include "desk/track/measures.h"
#include "desk/track/run_folder.h"
#include "desk/track/sink.h"

namespace capstan::track {

struct TrackerOptions {
  std::string target;  // names its state: "mlflow"
  // The target's address and project without secrets: a tracker that is started
  // with another one sends all of the run.
  std::string place;
  std::string project;
  double every_seconds = 5.0;
  // How long a run that has ended waits for a target that doesn't answer.
  double patience_seconds = 300.0;
  AlertOptions alerts;
};

// What was sent is kept in RUN/track/TARGET.json, which is replaced after each
// acknowledgement; nothing else in the run's folder is written to. One thread.
class Tracker {
 public:
  // `folder` is a run's (FindRun). `sink` may be null: alerts and measures
  // alone. Errors name the folder: it can't be written, or has a tracker with
  // this target.
  static absl::StatusOr<std::unique_ptr<Tracker>> Start(
      const std::string& folder, const TrackerOptions& options,
      std::unique_ptr<Sink> sink);
  ~Tracker();
  Tracker(const Tracker&) = delete;
  Tracker& operator=(const Tracker&) = delete;

  // Reads and sends what there is. To be called about each second, and at once
  // if busy(). An error is the target's refusal, or the end of patience with
  // it; it ends the tracking.
  absl::Status Turn();
  bool busy() const { return busy_; }
  // The run has ended, and everything was sent.
  bool done() const { return done_; }

  const std::string& name() const { return run_.name; }
  // "12,000 new steps in mlflow, up to step 12000"
  std::string Outcome() const;
  Measures Take() const;

 private:
  Tracker(const std::string& folder, const TrackerOptions& options,
          std::unique_ptr<Sink> sink, int lock);

  // Says on standard output, after the run's name, what it waits for or where
  // it writes: each once.
  void Say(const std::string& what);
  void SayWhatItWaitsFor();
  absl::Status WriteState() const;
  // The run is known by `id` from now on.
  void Begin(const std::string& id);
  void Look(const Row& row);
  void ReadToSend();
  // Takes from the row what the target has; returns whether anything is left.
  bool Unsent(Row* row) const;
  absl::Status Push();
  absl::Status Exchange();
  // After an outage began, or went on.
  absl::Status Wait(const absl::Status& outage);

  const TrackerOptions options_;
  const std::unique_ptr<Sink> sink_;
  const int lock_;  // a descriptor
  const std::string state_path_;

  // For alerts and measures, whatever the target does; the other one is read as
  // rows are sent.
  Follower follower_;
  absl::optional<Follower> to_send_;
  TrackedRun run_;
  RunState state_;
  Meter meter_;
  std::unique_ptr<Alerts> alerts_;
  std::deque<Row> unsent_;
  // The metrics that the target has of the step run_.acknowledged; empty:
  // unknown, all of them then.
  std::set<std::string> acknowledged_names_;
  int64_t sent_ = 0;  // rows, by this process
  std::set<std::string> said_;

  bool opened_ = false;
  bool finished_ = false;
  bool all_read_ = false;  // the run has ended, and unsent_ has all its rows
  bool busy_ = false;
  bool done_ = false;
  double next_push_ = 0.0;  // MonotonicSeconds
  double next_update_ = 0.0;
  double outage_began_ = 0.0;  // 0: there is none
  int failures_ = 0;
};

}  // namespace capstan::track

#endif  // CAPSTAN_DESK_TRACK_TRACKER_H_
