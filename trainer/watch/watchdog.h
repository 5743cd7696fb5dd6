// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_WATCH_WATCHDOG_H_
#define CAPSTAN_TRAINER_WATCH_WATCHDOG_H_

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/watch/activity_times.h"
#include "trainer/watch/courier.h"
#include "trainer/watch/ledger.h"
#include "trainer/watch/process_state.h"
#include "trainer/watch/rank_view.h"

namespace capstan {

struct WatchOptions {
  // A limit lies between these.
  double floor_seconds = 20.0;
  double ceiling_seconds = 1800.0;
  // After a report, and as long again (at least patience_seconds) without any
  // movement of any rank, all ranks end with kHungExitCode.
  bool abort = true;
  double patience_seconds = 0.0;
};

// Sees to it that a rank that hangs has a name. A thread in each rank measures
// how long its activities take and learns the limits of the next; the lowest
// rank of a host whose thread lives, its keeper, compares the ledgers of all
// ranks once one of them exceeds its limit. The keeper of the first host that
// is heard reports on standard error who is late; a late rank's thread adds the
// stacks of its other threads. A report comes again whenever the time taken has
// doubled.
class Watchdog {
 public:
  // What this rank's main thread does, while it lives. Scopes nest: an inner
  // one's time isn't the outer one's.
  class Activity {
   public:
    // `watchdog` may be null. `name` is a literal: "step", "evaluation", ..
    // `step`: the one under way, or the last one.
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

  // Begins to watch, with the ledgers that this process has joined.
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
  // All below is the keeper's.
  void Keep(int64_t now);
  // This host's ranks, with the states of their processes.
  std::vector<RankView> LocalViews(int64_t now);
  std::vector<HostView> AllViews(int64_t now);
  // patience_ns: until all ranks end.
  void Report(const std::vector<HostView>& hosts, int64_t patience_ns);
  // Ends the ranks of this host, and lets the other hosts know.
  void EndAll(int64_t now);
  std::string HostReportBytes();

  const WatchOptions options_;
  const int64_t tick_ns_;
  const Ledgers ledgers_;
  // Whether the launcher ends the ranks that are left when one has ended.
  const bool launcher_kills_;

  // The main thread's.
  ActivityTimes times_;
  Activity* current_ = nullptr;

  // The watching thread's.
  int64_t looked_ns_ = 0;
  ProcessWatch processes_;
  bool alarm_ = false;
  int64_t alarm_since_ns_ = 0;
  // A host hasn't been heard since then, and may be silent, or not.
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

#endif  // CAPSTAN_TRAINER_WATCH_WATCHDOG_H_
