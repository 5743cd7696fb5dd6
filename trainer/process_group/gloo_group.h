// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PROCESS_GROUP_GLOO_GROUP_H_
#define CAPSTAN_TRAINER_PROCESS_GROUP_GLOO_GROUP_H_

#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "absl/status/statusor.h"
#include "plugins/sdk/process_group.h"
#include "trainer/launcher/rank_info.h"

namespace capstan {

// Joins the ranks, which meet in `store`, over Gloo, on CPU: over the loopback
// where rank 0 is there, else over the interface GLOO_SOCKET_IFNAME or the one
// of this host's name.
absl::StatusOr<std::unique_ptr<ProcessGroup>> CreateGlooGroup(
    const RankInfo& info, c10::intrusive_ptr<c10d::Store> store);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROCESS_GROUP_GLOO_GROUP_H_
