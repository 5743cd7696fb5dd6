// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_OBEY_H_
#define CAPSTAN_TRAINER_SESSION_OBEY_H_

#include "absl/status/status.h"
#include "trainer/session/rank_run.h"

namespace capstan {

// Does what others have asked of the run since the last call (train.control),
// and answers each request in events.jsonl. What can't be done is refused there
// and changes nothing. Collective; all ranks do what rank 0 has read.
absl::Status Obey(RankRun* run);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_OBEY_H_
