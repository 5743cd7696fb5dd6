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

// A group over shared memory if all ranks of the run, which meet in `store`,
// can have one: they are on one host, in the same process name space, of one
// user, and CAPSTAN_CPU_COLLECTIVES is not "gloo". Else null, for all ranks.
// Throws what the store throws.
absl::StatusOr<std::unique_ptr<ProcessGroup>> TryShmGroup(const RankInfo& info,
                                                          c10d::Store* store);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_GROUP_H_
