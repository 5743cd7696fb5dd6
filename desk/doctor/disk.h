// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_DOCTOR_DISK_H_
#define CAPSTAN_DESK_DOCTOR_DISK_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "desk/doctor/finding.h"

namespace capstan::doctor {

struct DiskFacts {
  std::string folder;             // where it was measured
  absl::Status status;            // why it couldn't be written
  int64_t free_bytes = 0;         // for this user
  double bytes_per_second = 0.0;  // of a file and its fsync
  // Median seconds to write 4 KiB, fsync, rename and fsync the folder, as the
  // last files of a checkpoint are.
  double latency = 0.0;
};

// Writes files into a hidden folder below `folder`, or below the nearest of its
// parents that exists, and removes them: 64 MiB, or fewer that take a second.
DiskFacts MeasureDisk(const std::string& folder);

Finding JudgeDisk(const DiskFacts& facts);

}  // namespace capstan::doctor

#endif  // CAPSTAN_DESK_DOCTOR_DISK_H_
