// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_DOCTOR_ALL_REDUCE_H_
#define CAPSTAN_DESK_DOCTOR_ALL_REDUCE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "desk/doctor/finding.h"
#include "plugins/sdk/process_group.h"

namespace capstan::doctor {

// All-reduces of one size. Equal on all ranks.
struct Transfer {
  int64_t bytes = 0;     // of float32
  double seconds = 0.0;  // of one, the fastest, on the slowest rank
  int64_t wrong = 0;     // elements that aren't the sum, on all ranks
  // bytes / seconds * 2 (n - 1) / n: what the slowest link carries each way,
  // whatever the number n of ranks (NCCL's tests, PERFORMANCE.md).
  double bus_bytes_per_second = 0.0;
};

// Collective. From 4 KiB to 64 MiB, on GPUs to 256 MiB, as long as one takes
// less than a second. Throws CommunicationError.
std::vector<Transfer> MeasureAllReduce(ProcessGroup* group);

// The judgement: whether they are right, and whether the fastest is as fast as
// the slowest link that one would want.
Finding JudgeAllReduce(const std::vector<Transfer>& transfers, int ranks,
                       int nodes, const std::string& backend);

// A table with bars of the bus bandwidth, 80 columns wide.
std::string TransferTable(const std::vector<Transfer>& transfers);

// Collective: how far each rank's clock (CLOCK_REALTIME) is ahead of rank 0's,
// in seconds, to some milliseconds.
std::vector<double> MeasureSkew(ProcessGroup* group);
Finding JudgeSkew(const std::vector<double>& skew);

}  // namespace capstan::doctor

#endif  // CAPSTAN_DESK_DOCTOR_ALL_REDUCE_H_
