// SPDX-License-Identifier: Apache-2.0
//
// The machine that a question is about, and the run on it.
#ifndef CAPSTAN_DESK_FIT_PLACES_H_
#define CAPSTAN_DESK_FIT_PLACES_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "desk/fit/fitter.h"
#include "desk/fit/machine.h"
#include "host/config/run_config.pb.h"
#include "trainer/commands/command.h"
#include "trainer/commands/prepare.h"

namespace capstan::fit {

// Hosts, and the ranks of each.
using Places = std::vector<std::pair<int, int>>;

// What is asked of the config before it is prepared.
struct Launching {
  int processes = 0;         // 0: the config doesn't say
  int64_t global_batch = 0;  // the same
  int64_t micro_batch = 1;   // if global_batch is 0
  Train train;
};

absl::StatusOr<Launching> ReadLaunch(const RunOptions& options);

// What is described, or this machine. INVALID_ARGUMENT for a description that
// lacks something.
absl::StatusOr<Machine> MachineOf(const Question& question,
                                  const Launching& launching);

// Hosts and ranks to choose among.
Places PlacesOf(const Machine& machine, const Launching& launching);

// The run for the machine, on the most ranks that can share the global batch.
absl::StatusOr<std::unique_ptr<Prepared>> PrepareFor(const Question& question,
                                                     const Machine& machine,
                                                     const Launching& launching,
                                                     int64_t global_batch);

}  // namespace capstan::fit

#endif  // CAPSTAN_DESK_FIT_PLACES_H_
