// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_DOCTOR_RANKS_H_
#define CAPSTAN_DESK_DOCTOR_RANKS_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cluster/launch/place.h"
#include "desk/doctor/all_reduce.h"
#include "desk/doctor/finding.h"

namespace capstan::doctor {

// What a host says of itself. Versions of a run's parts: "capstan 0.1.0, ..".
struct HostReport {
  std::string host;  // its name; "" of a rank that isn't its host's first
  std::string versions;
  Findings findings;
};

// What the ranks have found together.
struct RanksReport {
  // 128 + the signal that has ended the ranks, and then nothing else; 0: none.
  int stopped = 0;
  int rank = 0;                    // whose report this is
  std::vector<HostReport> others;  // of the other hosts, in order of rank
  Findings findings;
  std::vector<Transfer> transfers;
};

// The same as objects; `hosts` are the others.
nlohmann::ordered_json AsJson(const HostReport& report);
nlohmann::ordered_json AsJson(const RanksReport& report);

// Starts the ranks at `place` as a run does (its launcher has, if it doesn't
// fork) on `gpus` GPUs of each host, measures what is between them, and
// gathers the hosts' reports, of which `own` is this one's. Once in a process,
// which must have started no thread. An error: they couldn't meet, or failed;
// the ranks have told why on standard error.
absl::StatusOr<RanksReport> AskRanks(Place place, int gpus,
                                     const HostReport& own);

}  // namespace capstan::doctor

#endif  // CAPSTAN_DESK_DOCTOR_RANKS_H_
