// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_WATCH_H_
#define CAPSTAN_TRAINER_SESSION_WATCH_H_

#include <memory>

#include "absl/status/statusor.h"
#include "plugins/sdk/process_group.h"
#include "trainer/run_config.pb.h"
#include "trainer/watch/watchdog.h"

namespace capstan {

// Begins to watch over the ranks of `group`, before whose creation WantLedgers
// was called, as train's hang_floor_seconds, hang_ceiling_seconds and on_hang
// say. An error if a rank can't: its hanging would have no name. Collective.
absl::StatusOr<std::unique_ptr<Watchdog>> Watch(const Train& train,
                                                ProcessGroup& group);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_WATCH_H_
