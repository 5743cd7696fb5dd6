// SPDX-License-Identifier: Apache-2.0
//
// Who is late: the judgement of what all ranks are seen to do.
#ifndef CAPSTAN_TRAINER_WATCH_LATE_H_
#define CAPSTAN_TRAINER_WATCH_LATE_H_

#include <string>
#include <vector>

#include "trainer/watch/rank_view.h"

namespace capstan {

struct Judgement {
  // Ascending; empty if all ranks are in the same collective, or none is
  // behind.
  std::vector<int> late;
  // "rank 2 is late: ..; ranks 0, 1, 3 wait in ..": one paragraph without a
  // full stop.
  std::string text;
};

// Late is, in this order: who is stopped or gone, or on a host that isn't
// heard; where all wait but not in the same collective, the fewer; who isn't in
// the collective that others wait in; who has issued the fewest.
Judgement Judge(const std::vector<HostView>& hosts);

// "0, 1, 3" or "0-6, 9".
std::string RankList(const std::vector<int>& ranks);

// "no step for 21 s (limit 20 s)", of the rank that has exceeded its limit by
// most; "" if none has.
std::string Overdue(const std::vector<HostView>& hosts);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_WATCH_LATE_H_
