// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_INITIAL_WEIGHTS_H_
#define CAPSTAN_TRAINER_SESSION_INITIAL_WEIGHTS_H_

#include <functional>

#include "absl/status/status.h"
#include "trainer/session/session.h"

namespace capstan {

// Calls `forwards` while the masters have the model's initial values, and the
// working copies, too; RolloutInfo::with_initial_weights. A copy of the present
// masters is on their device until it returns. Collective. After an error of
// `forwards` the masters are as they were, and the working copies aren't.
// FAILED_PRECONDITION if a resumed run began with other weights, or their files
// are others than at the first call.
absl::Status WithInitialWeights(Session* session,
                                const std::function<absl::Status()>& forwards);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_INITIAL_WEIGHTS_H_
