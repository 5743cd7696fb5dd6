// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_CHECK_RUN_H_
#define CAPSTAN_TRAINER_SESSION_CHECK_RUN_H_

#include "absl/status/statusor.h"
#include "trainer/session/run_parts.h"

namespace capstan {

// Whether the config's numbers make sense, and its plugins fit each other and
// `world_size` ranks; returns how a step's samples are then spread over them.
// Errors name the place in the config.
absl::StatusOr<BatchPlan> CheckRun(const LoadedConfig& loaded, int world_size,
                                   const RunParts& parts);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_CHECK_RUN_H_
