// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_WATCH_H_
#define CAPSTAN_TRAINER_SESSION_WATCH_H_

#include <memory>

#include "absl/status/statusor.h"
#include "cluster/watch/watchdog.h"
#include "host/config/run_config.pb.h"
#include "plugins/sdk/process_group.h"

namespace capstan {

// Starts the watchdog of the ranks of `group` with train's hang_floor_seconds,
// hang_ceiling_seconds and on_hang. WantLedgers must have been called before
// `group` was created. Fails if any rank can't be watched. Collective.
absl::StatusOr<std::unique_ptr<Watchdog>> Watch(const Train& train,
                                                ProcessGroup& group);

// How many seconds a rank may wait for others in a collective of NCCL: longer
// than the watchdog takes to end a run in which nothing moves, which has better
// reasons. A collective that waits for longer ends although another rank makes
// progress. 0: no limit, as the watchdog only reports.
double LongestHang(const Train& train);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_WATCH_H_
