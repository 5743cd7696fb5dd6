// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_COMM_SINGLE_GROUP_H_
#define CAPSTAN_CLUSTER_COMM_SINGLE_GROUP_H_

#include <memory>

#include "plugins/sdk/process_group.h"

namespace capstan {

// A group of one: reductions are no-ops, gather and scatter copy.
std::unique_ptr<ProcessGroup> CreateSingleGroup(at::Device device);

// A collective that is already complete.
std::unique_ptr<Work> NothingToWaitFor();

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_COMM_SINGLE_GROUP_H_
