// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PROCESS_GROUP_NCCL_EVENT_TIMES_H_
#define CAPSTAN_TRAINER_PROCESS_GROUP_NCCL_EVENT_TIMES_H_

#include <memory>

#include "trainer/process_group/device_times.h"

namespace capstan {

// By CUDA events on the waiting stream, and those of NCCL's own stream, which
// ProcessGroupNCCL::enableCollectivesTiming turns on. Waits that a CUDA graph
// captures aren't measured.
std::unique_ptr<DeviceTimes> NewEventTimes();

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROCESS_GROUP_NCCL_EVENT_TIMES_H_
