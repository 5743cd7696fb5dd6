// SPDX-License-Identifier: Apache-2.0
//
// Settings with which a run fits into memory: `plan --fit`, `init`, and the
// strategy of a run whose own doesn't fit.
#ifndef CAPSTAN_TRAINER_COMMANDS_FIT_RUN_H_
#define CAPSTAN_TRAINER_COMMANDS_FIT_RUN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/commands/command.h"
#include "trainer/commands/prepare.h"
#include "trainer/memory/fit.h"
#include "trainer/memory/memory_plan.h"

namespace capstan {

// A choice with its plan.
struct Fitted {
  FitChoice choice;
  MemoryPlan plan;
};

// The run under another strategy with default settings, or why that can't be.
struct OtherPlan {
  std::string package;
  bool own_curve = false;  // Strategy::own_curve
  absl::StatusOr<MemoryPlan> plan;
};

// By package. Plugins that can't be loaded are left out.
std::vector<OtherPlan> PlansOfOthers(const Prepared& prepared);

// The package of the strategy that sends least among those that have the run's
// curve and whose tensors take at most `room` bytes of a rank's device; "" if
// there is none.
std::string StrategyThatFits(const Prepared& prepared, int64_t room);

// The first choice whose tensors take at most `room` bytes of a rank's device;
// if there is none, that which takes least, and *fits is false. `options` are
// those that `prepared` was made from. An error if the model doesn't tell what
// its activations take, or no strategy can run it.
absl::StatusOr<Fitted> FitRun(const RunOptions& options,
                              const Prepared& prepared, int64_t room,
                              bool* fits);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_COMMANDS_FIT_RUN_H_
