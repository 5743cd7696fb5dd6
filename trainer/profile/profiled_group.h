// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PROFILE_PROFILED_GROUP_H_
#define CAPSTAN_TRAINER_PROFILE_PROFILED_GROUP_H_

#include <memory>

#include "plugins/sdk/process_group.h"

namespace capstan {

// Wraps `group` with a ProfileScope (kExposedPhase) around each wait for a
// collective, including those of groups split from it.
std::unique_ptr<ProcessGroup> ProfileWaits(std::unique_ptr<ProcessGroup> group);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROFILE_PROFILED_GROUP_H_
