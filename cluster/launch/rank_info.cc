// SPDX-License-Identifier: Apache-2.0
#include "cluster/launch/rank_info.h"

#include <errno.h>
#include <glog/logging.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/machine.h"
#include "base/status.h"
#include "cluster/launch/environment.h"

namespace capstan {

absl::StatusOr<int> ThreadsPerRank(int local_world_size) {
  CAPSTAN_ASSIGN_OR_RETURN(const absl::optional<int> threads,
                           IntVariable("OMP_NUM_THREADS", 1));
  return threads.value_or(std::max(1, AvailableCores() / local_world_size));
}

std::string RandomToken() {
  std::array<char, 16> bytes;
  ssize_t got = 0;
  do {
    got = getrandom(bytes.data(), bytes.size(), 0);
  } while (got < 0 && errno == EINTR);
  // Fewer than 256 bytes come at once or not at all.
  PCHECK(got == static_cast<ssize_t>(bytes.size()));
  return absl::BytesToHexString(absl::string_view(bytes.data(), bytes.size()));
}

}  // namespace capstan
