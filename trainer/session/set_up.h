// SPDX-License-Identifier: Apache-2.0
//
// From joining the other ranks to the first step: the parts of it that are the
// session's own. In the order in which they are called.
#ifndef CAPSTAN_TRAINER_SESSION_SET_UP_H_
#define CAPSTAN_TRAINER_SESSION_SET_UP_H_

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/data/data_order.h"
#include "trainer/session/session.h"

namespace capstan {

// Allocators, threads and, if asked for, determinism of this process.
void PrepareProcess(const Session& session);
// Sets the group; the device (machines may differ: the least able one is the
// run's); the output folder; max_steps. Collective.
absl::Status JoinRanks(Session* session);
// Sets up the strategy, the optimizer's state and `rest`, which the weights of
// a resumed run come from. Collective.
absl::Status SetUpStrategy(Session* session,
                           const std::function<absl::Status()>& rest);
// Whether a resumed run had done all its steps and its final folder is there;
// rank 0 then says so. Collective.
absl::StatusOr<bool> FinishedBefore(const Session& session);
// Sets rank 0's reporter, with the banner and the notes so far. Collective.
absl::Status StartReporter(Session* session, const std::string& note);
// Of the run's slowest rank, since the run's first process was executed.
// Collective.
double SecondsSinceStart(const Session& session);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_SET_UP_H_
