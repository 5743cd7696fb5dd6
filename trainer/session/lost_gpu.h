// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_LOST_GPU_H_
#define CAPSTAN_TRAINER_SESSION_LOST_GPU_H_

#include "absl/status/status.h"
#include "trainer/session/session.h"

namespace capstan {

// Whether this process's current GPU, if it uses one, rejects all work after a
// failure. Doesn't wait for the GPU.
bool GpuIsLost();

// If `status` is an error and the GPU is lost, returns an error that says so,
// with rank, step and what to do, as this rank's own error even if a collective
// found it. Otherwise returns `status`. `set_up` says whether steps had begun.
absl::Status ExplainLostGpu(const absl::Status& status, const Session& session,
                            bool set_up);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_LOST_GPU_H_
