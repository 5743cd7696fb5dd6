// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_ROLLOUTS_H_
#define CAPSTAN_TRAINER_SESSION_ROLLOUTS_H_

#include "absl/status/status.h"
#include "trainer/data/data_loader.h"
#include "trainer/session/session.h"
#include "trainer/session/step_in_flight.h"

namespace capstan {

// Reads all of the step's micro-batches and has the objective make them into
// those that are trained on (Objective::Rollout); step->ahead then has them.
// With Strategy::local_steps() each rank's own model computes, as in the step.
// Collective: if a rank fails, all return an error. Once a rank has a signal,
// or a program asks the run to stop, all leave the rollout where they next ask
// whether all are done, and step->left is true.
absl::Status RollOut(Session* session, DataLoader& loader, StepInFlight* step);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_ROLLOUTS_H_
