// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_GROUP_H_
#define CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_GROUP_H_

#include <memory>

#include "absl/status/statusor.h"
#include "plugins/sdk/process_group.h"
#include "trainer/launcher/rank_info.h"

namespace c10d {
class Store;
}  // namespace c10d

namespace capstan {

// A shared-memory group if the ranks of the run, which meet in `store`, allow
// it: one host, one PID namespace, one user, and CAPSTAN_CPU_COLLECTIVES isn't
// "gloo". Else null on all ranks. Throws what the store throws.
absl::StatusOr<std::unique_ptr<ProcessGroup>> TryShmGroup(const RankInfo& info,
                                                          c10d::Store* store);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_GROUP_H_
