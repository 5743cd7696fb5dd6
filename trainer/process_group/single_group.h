// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PROCESS_GROUP_SINGLE_GROUP_H_
#define CAPSTAN_TRAINER_PROCESS_GROUP_SINGLE_GROUP_H_

#include <memory>

#include "plugins/sdk/process_group.h"

namespace capstan {

// A group of one: sums are what they are, gathering and scattering copy.
std::unique_ptr<ProcessGroup> CreateSingleGroup(at::Device device);

// A collective that had nothing to do.
std::unique_ptr<Work> NothingToWaitFor();

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROCESS_GROUP_SINGLE_GROUP_H_
