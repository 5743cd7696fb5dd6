// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_GPUS_HEALTH_H_
#define CAPSTAN_DESK_GPUS_HEALTH_H_

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"

namespace capstan {

// What NVIDIA's management library (NVML) tells of all GPUs of this machine, as
// an array of objects. Each has index, name, uuid (both empty: it doesn't
// answer) and visible (whether CUDA shows it, or a slice of it, to this
// process); the others are there if the card and the driver tell them:
//   memory_bytes, free_bytes, slices (UUIDs of MIG's),
//   celsius, watts, watts_limit, utilisation (percent of the last second or
//   less in which a kernel ran), sm_mhz, sm_mhz_max,
//   slowed: why its clocks are lowered, names as nvidia-smi has them, without
//     those that are meant ("GPU idle", a power cap),
//   uncorrected_errors (ECC, since the driver was loaded), rows_pending (a
//   reset will replace damaged memory), rows_failed (it couldn't),
//   persistent (the driver stays loaded), pcie_width, pcie_width_max,
//   nvlinks, nvlinks_active, no_peer: indices of GPUs whose memory it can't
//     read,
//   processes: objects with pid, name and bytes (-1: unknown).
// Without the library, what CUDA shows (base/gpus.h); without a GPU, an empty
// array. An error if the driver can't be used. Asked anew in each call, in a
// child process, because a process that has touched the driver can't fork.
absl::StatusOr<nlohmann::ordered_json> ReadGpuHealth();

}  // namespace capstan

#endif  // CAPSTAN_DESK_GPUS_HEALTH_H_
