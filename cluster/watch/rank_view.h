// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_WATCH_RANK_VIEW_H_
#define CAPSTAN_CLUSTER_WATCH_RANK_VIEW_H_

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "cluster/watch/ledger.h"
#include "cluster/watch/process_state.h"

namespace capstan {

// A rank at one moment, read from its ledger. The structs are sent between
// hosts as bytes; times are ages, since each host has its own clock, and texts
// end with 0.
struct CollectiveView {
  uint64_t number = 0;  // 0: none
  int64_t bytes = 0;
  int64_t age_ns = 0;
  char name[kCollectiveNameBytes + 1] = {};
  char label[kCollectiveLabelBytes + 1] = {};
};

struct GroupView {
  uint64_t issued = 0;
  uint64_t started = 0;
  // The oldest collective in progress; if the host doesn't see ends, the last
  // one issued.
  CollectiveView current;
  bool sees_ends = false;

  // Whether the host sees the rank in a collective.
  bool waits() const { return sees_ends && current.number != 0; }
};

struct RankView {
  // A watchdog that hasn't looked for so long is stopped or gone.
  static constexpr int64_t kStaleNs = int64_t{3} * 1000 * 1000 * 1000;

  int32_t rank = 0;
  int32_t pid = 0;  // 0: its ledger can't be seen
  uint64_t start_ticks = 0;
  ProcessState state = ProcessState::kUnknown;
  bool alarm = false;
  char activity[25] = {};
  char phase[17] = {};
  int64_t step = 0;
  int64_t activity_ns = -1;  // how long; -1: none
  int64_t phase_ns = 0;
  int64_t limit_ns = 0;
  int64_t watched_ns = 0;  // since its watchdog looked
  uint64_t moves = 0;      // events and signs of life
  GroupView groups[kLedgerGroups];

  bool InAlarm() const { return alarm && watched_ns <= kStaleNs; }
  // Returns the group in whose collective the rank waits, or -1.
  int WaitsIn() const {
    for (int g = 0; g < kLedgerGroups; ++g) {
      if (groups[g].waits()) return g;
    }
    return -1;
  }
  bool AtRest() const {
    return state == ProcessState::kStopped || state == ProcessState::kTraced ||
           state == ProcessState::kGone;
  }
};
static_assert(std::is_trivially_copyable<RankView>::value, "travels as bytes");

// Reads `slot` at `now_ns`; leaves the state unknown.
RankView ViewOf(const LedgerSlot& slot, int64_t now_ns);

// A host as another one or the host itself sees it.
struct HostView {
  std::string name;
  // Seconds since the host was last heard; 0 if it is heard.
  double silent_seconds = 0.0;
  // Whether it can't be heard because the host that relays reports is silent.
  bool hidden = false;
  std::vector<RankView> ranks;  // unless heard(): as they were, with `rank`
  bool silent() const { return silent_seconds > 0.0 && !hidden; }
  bool heard() const { return !silent() && !hidden; }
};

// What a host reports to the others.
struct HostReport {
  uint64_t count = 0;   // of its reports
  bool ending = false;  // its ranks end the run
  std::vector<RankView> ranks;
};

// Whether a rank of it is late, or it ends the run.
bool HasAlarm(const HostReport& report);

std::string Encode(const HostReport& report);
// Returns nullopt unless `bytes` is a report of `ranks` ranks by this build.
absl::optional<HostReport> ParseHostReport(absl::string_view bytes,
                                           size_t ranks);

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_WATCH_RANK_VIEW_H_
