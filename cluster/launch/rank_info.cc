// SPDX-License-Identifier: Apache-2.0
#include "cluster/launch/rank_info.h"

#include <algorithm>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/types/optional.h"
#include "base/machine.h"
#include "base/status.h"
#include "cluster/launch/environment.h"
#include "cluster/launch/network.h"

namespace capstan {

absl::StatusOr<int> ThreadsPerRank(int local_world_size) {
  CAPSTAN_ASSIGN_OR_RETURN(const absl::optional<int> threads,
                           IntVariable("OMP_NUM_THREADS", 1));
  return threads.value_or(std::max(1, AvailableCores() / local_world_size));
}

std::string RandomToken() { return absl::BytesToHexString(RandomBytes(16)); }

}  // namespace capstan
