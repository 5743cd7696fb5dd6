// SPDX-License-Identifier: Apache-2.0
#include "cluster/launch/restarts.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace capstan {

bool Restarts::Again(int64_t step, bool gave_up_host) {
  // The number of hosts limits these restarts.
  if (step < 0) {
    if (!gave_up_host) ++fruitless_;
  } else {
    // Earlier steps were repeated before it, so that step or what follows it
    // kills the ranks.
    same_step_ = step == died_after_ && !gave_up_host;
    fruitless_ = same_step_ ? fruitless_ + 1 : 1;
    died_after_ = step;
  }
  step_ = std::max(step_, step);
  if (done_ >= most_ || fruitless_ >= kFruitless) return false;
  ++done_;
  return true;
}

std::string Restarts::When() const {
  return step_ < 0 ? "before the first step"
                   : absl::StrCat("after step ", step_);
}

std::string Restarts::Count() const {
  return absl::StrCat(" (", done_, " of ", most_, ")");
}

std::string Restarts::Ending() const {
  if (done_ == 0) return "";
  const std::string times =
      absl::StrCat("the ranks had been started again ",
                   done_ == 1 ? "once" : absl::StrCat(done_, " times"));
  if (fruitless_ >= kFruitless && same_step_) {
    return absl::StrCat("; ", times, ", and died after the same step, ",
                        died_after_, ", again");
  }
  if (fruitless_ >= kFruitless) {
    return absl::StrCat("; ", times, ", and ", fruitless_,
                        " deaths with no step finished between them end it");
  }
  return done_ < most_ ? absl::StrCat("; ", times)
                       : absl::StrCat("; ", times, " (launch.max_restarts)");
}

absl::StatusOr<Place> PlaceWithout(const Place& place, absl::string_view gone,
                                   std::string* hosts) {
  Place left = place;
  std::vector<std::string> addresses = absl::StrSplit(*hosts, ',');
  const bool known = static_cast<int>(addresses.size()) == place.info.nodes;
  bool first_gone = false;
  for (const absl::string_view text : absl::StrSplit(gone, ',')) {
    int host = -1;
    if (!absl::SimpleAtoi(text, &host) || host < 0 ||
        host >= place.info.nodes) {
      return absl::InternalError(
          absl::StrCat("the ranks' meeting gave up hosts \"", gone, "\""));
    }
    if (host == place.info.node_rank) {
      return absl::UnavailableError(
          "the ranks of this host came too late: the run goes on without them");
    }
    --left.info.nodes;
    if (host < place.info.node_rank) --left.info.node_rank;
    first_gone |= host == 0;
    if (known) addresses[host].clear();
  }
  addresses.erase(std::remove(addresses.begin(), addresses.end(), ""),
                  addresses.end());
  *hosts = known ? absl::StrJoin(addresses, ",") : "";
  // The new rank 0 publishes its address, as the old one did.
  const bool published =
      place.info.master_addr.empty() || place.info.master_port == 0;
  if (first_gone && left.info.nodes > 1 && !published) {
    if (!known) {
      return absl::UnavailableError(
          "rank 0's host is gone, and the others' addresses aren't known: "
          "start the run again, and it goes on from its last checkpoint");
    }
    left.info.master_addr = addresses[0];
  }
  left.info.world_size = left.info.nodes * left.info.local_world_size;
  return left;
}

absl::StatusOr<std::vector<int>> MirrorFiles(int count) {
  std::vector<int> files;
  for (int i = 0; i < count; ++i) {
    const int fd = memfd_create("capstan-mirror", MFD_CLOEXEC);
    if (fd < 0) {
      const std::string why = strerror(errno);
      for (const int made : files) close(made);
      return absl::ResourceExhaustedError(absl::StrCat(
          "no memory for the mirror of the run's state: memfd_create: ", why,
          " (train.mirror_every 0 does without it)"));
    }
    files.push_back(fd);
  }
  return files;
}

}  // namespace capstan
