// SPDX-License-Identifier: Apache-2.0
//
// The ways to run a config that change nothing in its result but roundings.
#ifndef CAPSTAN_DESK_FIT_CANDIDATES_H_
#define CAPSTAN_DESK_FIT_CANDIDATES_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "desk/fit/machine.h"
#include "desk/fit/predict.h"
#include "trainer/commands/prepare.h"
#include "trainer/memory/fit.h"
#include "trainer/memory/memory_plan.h"

namespace capstan::fit {

struct Candidate {
  FitChoice choice;
  int hosts = 1;
  int ranks = 1;  // of each host
  int64_t accumulation = 1;
  MemoryPlan plan;
  // What its process is planned to take in a trial, without evaluations and
  // saves; 0: unknown.
  int64_t trial_process = 0;
  Traffic traffic;
  double updated = 0.0;  // elements of a rank
  // On GPUs, whether masters, their gradients and state, and parameters, are on
  // the host.
  bool optimizer_on_host = false;
  bool parameters_on_host = false;

  // Predicted: of a step, and of the largest rank.
  double seconds = 0.0;
  double seconds_low = 0.0;
  double seconds_high = 0.0;
  int64_t memory = 0;  // 0: unknown
  int64_t memory_low = 0;
  int64_t memory_high = 0;
  bool tried = false;    // the time is that of a trial
  bool unknown = false;  // nothing is known of its time
  // The same with less recomputation fits, and so takes no longer.
  bool needless = false;
  // Whether the config sets what must be taken back: the n of EVERY_N, and
  // activations on the host.
  bool clears_n = false;
  bool clears_offload = false;
  std::string refused;  // why it can't be; "": it can

  int all_ranks() const { return hosts * ranks; }
  // "capstan.fsdp reshard_after_forward=false".
  std::string Strategy() const;
  // "NONE", "MLP", "EVERY_N 2", "EVERY_UNIT".
  std::string Checkpointing() const;
  // What --set says to have a run be it, on this machine.
  std::vector<std::string> Overrides() const;
};

// Of a step of the candidate, what isn't measured.
Measured StepOf(const Candidate& candidate);

// A strategy that isn't among the candidates, and why.
struct LeftOut {
  std::string what;
  std::string why;
};

struct Candidates {
  std::vector<Candidate> all;
  std::vector<LeftOut> left_out;
};

// Those of `prepared`, whose global batch stays as it is, on as many hosts and
// ranks as `places` has pairs of. Strategies are asked: each plugin, and each
// of its switches that changes what it plans to hold or send. `micro_batch` is
// the config's own, which deterministic runs keep.
absl::StatusOr<Candidates> FindCandidates(
    const Prepared& prepared, const std::vector<std::pair<int, int>>& places,
    int64_t micro_batch);

}  // namespace capstan::fit

#endif  // CAPSTAN_DESK_FIT_CANDIDATES_H_
