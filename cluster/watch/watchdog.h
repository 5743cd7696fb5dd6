// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_WATCH_WATCHDOG_H_
#define CAPSTAN_CLUSTER_WATCH_WATCHDOG_H_

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "cluster/watch/activity_times.h"
#include "cluster/watch/courier.h"
#include "cluster/watch/ledger.h"
#include "cluster/watch/process_state.h"
#include "cluster/watch/rank_view.h"

namespace capstan {

struct WatchOptions {
  // A limit lies between these.
  double floor_seconds = 20.0;
  double ceiling_seconds = 1800.0;
  // Whether all ranks end with kHungExitCode if, after a report, no rank moves
  // for as long again (at least patience_seconds).
  bool abort = true;
  double patience_seconds = 0.0;
};

// Detects hangs and names the late ranks. A thread in each rank measures how
// long its activities take and derives the limits of later ones. The lowest
// rank of a host whose thread lives, its keeper, compares the ledgers of all
// ranks once one of them exceeds its limit. The keeper of the first host that
// is heard reports the late ranks on standard error; a late rank's thread adds
// the stacks of its other threads. The report is repeated whenever the time has
// doubled.
class Watchdog {
 public:
  // What this rank's main thread does during this object's lifetime. Scopes
  // nest: the outer one's time excludes the inner one's.
  class Activity {
   public:
    // `watchdog` may be null. `name` is a literal: "step", "evaluation", ..
    // `step` is the current or the last one.
    Activity(Watchdog* watchdog, const char* name, int64_t step);
    ~Activity();
    Activity(const Activity&) = delete;
    Activity& operator=(const Activity&) = delete;

   private:
    friend class Watchdog;
    Watchdog* const watchdog_;
    const char* const name_;
    const int64_t step_;
    Activity* outer_ = nullptr;
    int64_t limit_ns_ = 0;
    int64_t since_ns_ = 0;  // without what inner ones have taken
    int64_t inner_ns_ = 0;
  };

  // Starts to watch the ledgers that this process has joined.
  static absl::StatusOr<std::unique_ptr<Watchdog>> Start(
      const WatchOptions& options);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  Watchdog(const WatchOptions& options, Ledgers ledgers);

  void Begin(Activity* activity);
  void End(Activity* activity);
  void Publish(const Activity* activity);

  // The thread.
  void Run();
  void Look();
  bool IsKeeper(int64_t now);
  // The keeper uses all below.
  void Keep(int64_t now);
  // This host's ranks, with the states of their processes.
  std::vector<RankView> LocalViews(int64_t now);
  std::vector<HostView> AllViews(int64_t now);
  // patience_ns: until all ranks end.
  void Report(const std::vector<HostView>& hosts, int64_t patience_ns);
  // Ends the ranks of this host, and lets the other hosts know.
  void EndAll(int64_t now);
  Courier::Report OwnReport();

  const WatchOptions options_;
  const int64_t tick_ns_;
  const Ledgers ledgers_;
  // Whether the launcher kills the remaining ranks when one has ended.
  const bool launcher_kills_;

  // The main thread's.
  ActivityTimes times_;
  Activity* current_ = nullptr;

  // The watching thread's.
  int64_t looked_ns_ = 0;
  ProcessWatch processes_;
  bool alarm_ = false;
  int64_t alarm_since_ns_ = 0;
  // Whether a host's report hasn't been read since then, and the host may or
  // may not be silent.
  bool in_doubt_ = false;
  int64_t next_report_ns_ = 0;  // of the activity's age
  int64_t reported_ns_ = 0;     // 0: not in this alarm
  uint64_t moves_ = 0;
  int64_t moved_ns_ = 0;
  bool ending_ = false;

  // What the courier takes along.
  std::mutex report_mutex_;
  HostReport report_;
  bool keeps_ = false;

  std::mutex mutex_;
  std::condition_variable stop_;
  bool stopped_ = false;
  std::thread thread_;
  std::unique_ptr<Courier> courier_;  // null with one host
};

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_WATCH_WATCHDOG_H_
