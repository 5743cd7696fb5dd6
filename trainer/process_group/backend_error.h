// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PROCESS_GROUP_BACKEND_ERROR_H_
#define CAPSTAN_TRAINER_PROCESS_GROUP_BACKEND_ERROR_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace capstan {

// What an exception of c10d or Gloo says, without its source location and
// general advice.
std::string BackendMessage(absl::string_view what);

// Whether such a message tells of a wait that took too long.
bool IsTimeout(absl::string_view message);

// Whether an exception of c10d, its whole text, tells of a GPU's memory that
// NCCL couldn't have: "unhandled cuda error .. Last error: Cuda failure 2 'out
// of memory'".
bool IsOutOfMemory(absl::string_view what);

// RESOURCE_EXHAUSTED: that NCCL could not connect rank `rank`, on GPU `gpu`,
// for want of memory.
absl::Status NcclOutOfMemory(int rank, int gpu);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROCESS_GROUP_BACKEND_ERROR_H_
