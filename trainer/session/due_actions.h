// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_DUE_ACTIONS_H_
#define CAPSTAN_TRAINER_SESSION_DUE_ACTIONS_H_

#include "absl/status/status.h"
#include "trainer/session/rank_run.h"

namespace capstan {

// What a run does besides steps: save, evaluate, sample. due_actions.cc lists
// it; nothing else of the run knows the single actions.

// Does what is due before the first step. Like the other two, collective.
absl::Status ActAtStart(RankRun* run);
// Whether anything is scheduled after the step just done. The step's sums are
// then read before any action, even if they are deferred.
bool ActionScheduled(const RankRun& run);
absl::Status ActAfterStep(RankRun* run);
// Does what is due after the last step, or after a signal.
absl::Status ActAtEnd(RankRun* run);
// Writes each rank's own files at the end: the profile, which is no due action.
// Not collective: the ranks have yet to agree on the outcome.
absl::Status WriteOutput(RankRun* run);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_DUE_ACTIONS_H_
