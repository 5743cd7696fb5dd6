// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_WATCH_RANK_VIEW_H_
#define CAPSTAN_TRAINER_WATCH_RANK_VIEW_H_

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "trainer/watch/ledger.h"
#include "trainer/watch/process_state.h"

namespace capstan {

// A rank at one moment, read from its ledger. Plain bytes, which travel between
// hosts; times are ages, since each host has its own clock. Texts end with 0.
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
  // What the rank is in, the oldest; where the host doesn't see ends, what it
  // issued last.
  CollectiveView current;
  bool sees_ends = false;

  // In a collective, as far as the host sees.
  bool waits() const { return sees_ends && current.number != 0; }
};

struct RankView {
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

  // The group in whose collective it is; -1: in none.
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

// Of `slot` at `now_ns`; the state is left unknown.
RankView ViewOf(const LedgerSlot& slot, int64_t now_ns);

// A host, as another one or itself sees it.
struct HostView {
  std::string name;
  // In seconds since it was last heard; 0: it is heard.
  double silent_seconds = 0.0;
  // Nothing can be heard of it, for want of the host that passes reports on.
  bool hidden = false;
  std::vector<RankView> ranks;  // unless heard(): as they were, with `rank`
  bool silent() const { return silent_seconds > 0.0 && !hidden; }
  bool heard() const { return !silent() && !hidden; }
};

// What a host tells the others.
struct HostReport {
  uint64_t count = 0;   // of its reports
  bool ending = false;  // its ranks end the run
  std::vector<RankView> ranks;
};

std::string Encode(const HostReport& report);
// nullopt unless it is a report of `ranks` ranks, of this build.
absl::optional<HostReport> ParseHostReport(absl::string_view bytes,
                                           size_t ranks);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_WATCH_RANK_VIEW_H_
