// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_COMM_BACKEND_ERROR_H_
#define CAPSTAN_CLUSTER_COMM_BACKEND_ERROR_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace capstan {

// Returns the message of an exception of c10d or Gloo, without its source
// location and general advice, and with what NCCL itself has said.
std::string BackendMessage(absl::string_view what);

// Whether such a message reports a timeout.
bool IsTimeout(absl::string_view message);

// Whether the whole text of a c10d exception reports that NCCL could not
// allocate GPU memory: "unhandled cuda error .. Last error: Cuda failure 2 'out
// of memory'".
bool IsOutOfMemory(absl::string_view what);

// Returns RESOURCE_EXHAUSTED: NCCL ran out of memory when it connected rank
// `rank` on GPU `gpu`.
absl::Status NcclOutOfMemory(int rank, int gpu);

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_COMM_BACKEND_ERROR_H_
