// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_SET_UP_H_
#define CAPSTAN_TRAINER_SESSION_SET_UP_H_

#include "absl/status/statusor.h"
#include "trainer/session/rank_run.h"

namespace capstan {

// Sets up a rank's side of a run, from this process's allocators to the banner:
// joins the others, settles the run's parameters, sets up strategy and
// optimizer, and restores the state. Returns false, after a line from rank 0,
// if an earlier run has completed all steps and its final folder exists; then
// there is neither a loader nor a reporter. CANCELLED if a signal came before
// the first step. Collective.
absl::StatusOr<bool> SetUp(RankRun* run);

// For train.deterministic: makes this process's operators compute the same bits
// in each run on the same machine, on CPUs with any number of threads, or throw
// c10::Error where LibTorch has no deterministic operator. Called before the
// process's first use of a GPU and of MKL. LibTorch then also turns off NCCL's
// sums in the switch.
void ComputeDeterministically();

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_SET_UP_H_
