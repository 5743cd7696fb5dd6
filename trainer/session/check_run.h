// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_CHECK_RUN_H_
#define CAPSTAN_TRAINER_SESSION_CHECK_RUN_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "host/config/load_config.h"
#include "trainer/session/run_parts.h"

namespace capstan {

// Checks the config's numbers, and that its plugins fit each other and
// `world_size` ranks; returns how samples are distributed over them. Errors
// name the config location.
absl::StatusOr<BatchPlan> CheckRun(const LoadedConfig& loaded, int world_size,
                                   const RunParts& parts);

// Checks it for a run whose last step is `last`. Errors name the field.
absl::Status CheckProfile(const Profile& profile, int64_t last);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_CHECK_RUN_H_
