// SPDX-License-Identifier: Apache-2.0
//
// Where a run's rows go: a file a target (csv.cc, mlflow.cc, ..).
#ifndef CAPSTAN_DESK_TRACK_SINK_H_
#define CAPSTAN_DESK_TRACK_SINK_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "desk/track/follower.h"
#include "desk/track/measures.h"
#include "desk/track/run_folder.h"

namespace capstan::track {

constexpr int64_t kNoStep = std::numeric_limits<int64_t>::min();

// The run as a target knows it.
struct TrackedRun {
  std::string id;      // Follower::id: the same after any number of restarts
  std::string folder;  // absolute
  std::string name;    // for people: "run_distributed 2026-11-28_02-28-48"
  std::string project;
  double start_time = 0.0;  // Unix seconds
  Settings settings;
  // The newest step that the target has acknowledged, as far as the tracker's
  // state says; kNoStep if nothing was sent.
  int64_t acknowledged = kNoStep;
};

// One run's place in a target. An UNAVAILABLE error is an outage: the tracker
// waits, opens the sink again, and sends the same rows. Any other error is a
// refusal, which ends the tracking; its message is for the user, and has no
// credentials.
class Sink {
 public:
  virtual ~Sink() = default;

  // Which target it is, without secrets: one that has another place gets all of
  // the run.
  virtual std::string place() const = 0;
  // The file that it writes, once it is open; "" for a server.
  virtual std::string file() const { return ""; }

  // Finds the run in the target, or makes it there. Returns the newest step
  // that the target has, by the target's own account if it keeps one, else
  // run.acknowledged; rows after it are sent. A row that is offered again must
  // not be there twice.
  virtual absl::StatusOr<int64_t> Open(const TrackedRun& run) = 0;
  // In ascending order. OK: the target has them all.
  virtual absl::Status Send(const std::vector<Row>& rows) = 0;
  // What the run is doing, every few seconds and once after its last row.
  virtual absl::Status Update(const Measures&) { return absl::OkStatus(); }
  // After the last row of a run that has ended, with all of its events. May be
  // called again, by a tracker that was killed.
  virtual absl::Status Finish(const RunState&, const std::vector<Event>&) {
    return absl::OkStatus();
  }
};

struct SinkOptions {
  std::string url;   // "": as the target's environment variables say
  std::string file;  // csv, prometheus
};

std::unique_ptr<Sink> MakeCsv(const SinkOptions& options);
// Errors name a flag or variable that is missing or wrong.
absl::StatusOr<std::unique_ptr<Sink>> MakeMlflow(const SinkOptions& options);
absl::StatusOr<std::unique_ptr<Sink>> MakeTrackio(const SinkOptions& options);
// Below WANDB_DIR, or the working directory.
std::unique_ptr<Sink> MakeWandb();
absl::StatusOr<std::unique_ptr<Sink>> MakeOtlp(const SinkOptions& options);
absl::StatusOr<std::unique_ptr<Sink>> MakeTrainJob(const SinkOptions& options);

// What all runs are doing, in Prometheus' text format, version 0.0.4.
std::string PrometheusText(const std::vector<Measures>& runs);

// The variable's value, or "".
std::string Variable(const char* name);

}  // namespace capstan::track

#endif  // CAPSTAN_DESK_TRACK_SINK_H_
