// SPDX-License-Identifier: Apache-2.0
#include "cluster/launch/rank_info.h"

#include <errno.h>
#include <glog/logging.h>
#include <sys/random.h>

#include <algorithm>
#include <string>

#include "absl/strings/escaping.h"
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

std::string RandomBytes(size_t count) {
  std::string bytes(count, '\0');
  for (size_t done = 0; done < count;) {
    const ssize_t n = getrandom(&bytes[done], count - done, 0);
    PCHECK(n >= 0 || errno == EINTR) << "no random numbers";
    done += static_cast<size_t>(std::max<ssize_t>(n, 0));
  }
  return bytes;
}

std::string RandomToken() { return absl::BytesToHexString(RandomBytes(16)); }

}  // namespace capstan
