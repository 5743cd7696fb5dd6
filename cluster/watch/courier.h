// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_WATCH_COURIER_H_
#define CAPSTAN_CLUSTER_WATCH_COURIER_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "absl/types/optional.h"
#include "cluster/watch/ledger.h"
#include "cluster/watch/rank_view.h"

namespace capstan {

// Carries reports between the hosts of a run once a second, through the store
// of their meeting, whose clients have proved that they belong to the run. Runs
// on a thread of its own, since the store may take long to answer. Only one
// rank of a host has reports to carry; the other ranks' couriers idle.
//
// The first host, which has the store, reads all reports, and tells the others
// whether there is an alarm and when each host was heard. They read the reports
// themselves only in an alarm: else the store would send the square of the
// number of hosts each second.
class Courier {
 public:
  // This host's report.
  struct Report {
    std::string bytes;   // encoded; "" if another rank carries it
    bool alarm = false;  // a rank here is late, or this host ends the run
  };
  struct Heard {
    // The last one; on other hosts than the first unset while there is no
    // alarm and the first is heard.
    absl::optional<HostReport> report;
    int64_t report_ns = 0;  // when it was new here
    int64_t at_ns = 0;      // when the host was heard
  };

  // `report` is called on the courier's thread, once an interval.
  Courier(const Ledgers& ledgers, std::function<Report()> report,
          std::chrono::milliseconds interval = std::chrono::seconds(1));
  // Doesn't wait long for the store: the thread may outlive this.
  ~Courier();
  Courier(const Courier&) = delete;
  Courier& operator=(const Courier&) = delete;

  // Returns what was heard, by host.
  std::vector<Heard> heard() const;
  // Returns how long the current request to the store has taken; 0 if there is
  // none.
  int64_t pending_ns() const;

 private:
  struct State;
  static void Run(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;
};

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_WATCH_COURIER_H_
