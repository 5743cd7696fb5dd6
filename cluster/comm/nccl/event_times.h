// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_COMM_NCCL_EVENT_TIMES_H_
#define CAPSTAN_CLUSTER_COMM_NCCL_EVENT_TIMES_H_

#include <memory>

#include "cluster/comm/device_times.h"

namespace capstan {

// Measures with CUDA events on the waiting stream and on NCCL's own, which
// ProcessGroupNCCL::enableCollectivesTiming turns on. Waits that a CUDA graph
// captures aren't measured.
std::unique_ptr<DeviceTimes> NewEventTimes();

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_COMM_NCCL_EVENT_TIMES_H_
