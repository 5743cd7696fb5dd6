// SPDX-License-Identifier: Apache-2.0
//
// Decides which ranks are late from what all ranks are seen to do.
#ifndef CAPSTAN_CLUSTER_WATCH_LATE_H_
#define CAPSTAN_CLUSTER_WATCH_LATE_H_

#include <string>
#include <vector>

#include "cluster/watch/rank_view.h"

namespace capstan {

struct Judgement {
  // The late ranks, ascending; empty if all ranks are in the same collective or
  // none is behind.
  std::vector<int> late;
  // "rank 2 is late: ..; ranks 0, 1, 3 wait in ..": one paragraph without a
  // full stop.
  std::string text;
};

// The late ranks are the first of these groups that isn't empty: those that are
// stopped or gone, or on a host that isn't heard; if all wait but not in the
// same collective, the minority; those not in the collective in which others
// wait; those that have issued the fewest collectives.
Judgement Judge(const std::vector<HostView>& hosts);

// "0, 1, 3" or "0-6, 9".
std::string RankList(const std::vector<int>& ranks);

// Returns "no step for 21 s (limit 20 s)" for the rank that has exceeded its
// limit by most; "" if none has.
std::string Overdue(const std::vector<HostView>& hosts);

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_WATCH_LATE_H_
