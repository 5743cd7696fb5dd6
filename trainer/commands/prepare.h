// SPDX-License-Identifier: Apache-2.0
//
// Shared by train, check and plan: turns a config into plugins that fit each
// other and the ranks they will run on.
#ifndef CAPSTAN_TRAINER_COMMANDS_PREPARE_H_
#define CAPSTAN_TRAINER_COMMANDS_PREPARE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "cluster/launch/place.h"
#include "host/config/load_config.h"
#include "trainer/commands/command.h"
#include "trainer/memory/memory_plan.h"
#include "trainer/session/run_parts.h"

namespace capstan {

// A job with its plugins, validated for its ranks.
struct Prepared {
  std::unique_ptr<PluginHost> host;
  ConfigContext context;
  Place place;
  int processes = 1;  // ranks on all hosts
  TrainJob job;
};

// Starts no thread and allocates nothing of the model's size. With
// options.print_config, prints the config and returns null. With
// options.starts_run, a place where no run can start is an error.
absl::StatusOr<std::unique_ptr<Prepared>> Prepare(const RunOptions& options);

// Plans the same run, with the global batch that it has, for `processes` ranks.
// FieldError if they can't share it.
absl::Status PlanAnew(int processes, Prepared* prepared);

// The GPUs that a run on this machine uses. An error if it has some that can't
// be used, or that this trainer has no parts for: training on the CPU instead
// is for the user to choose.
absl::StatusOr<int> GpusOfRun();

// The default number of ranks, for configs without launch.processes.
absl::StatusOr<CommandHost::Ranks> RanksOfRun();

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_COMMANDS_PREPARE_H_
