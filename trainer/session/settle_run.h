// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_SETTLE_RUN_H_
#define CAPSTAN_TRAINER_SESSION_SETTLE_RUN_H_

#include "absl/status/status.h"
#include "trainer/session/session.h"

namespace capstan {

// Settles a run's parameters once all ranks have met: compares their configs,
// data and models; then sets the device's precision, the output folder, which
// all hosts must share, and max_steps. Collective.
absl::Status SettleRun(Session* session);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_SETTLE_RUN_H_
