// SPDX-License-Identifier: Apache-2.0
//
// What train, check and plan have in common: a config becomes plugins that fit
// each other and the ranks that they will run on.
#ifndef CAPSTAN_TRAINER_COMMANDS_PREPARE_H_
#define CAPSTAN_TRAINER_COMMANDS_PREPARE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "trainer/commands/commands.h"
#include "trainer/config/load_config.h"
#include "trainer/launcher/rank_info.h"
#include "trainer/memory/memory_plan.h"
#include "trainer/session/run_parts.h"

namespace capstan {

// A job with its plugins, checked for the ranks it will run on.
struct Prepared {
  std::unique_ptr<PluginHost> host;
  ConfigContext context;
  absl::optional<RankInfo> environment;  // set under torchrun
  int processes = 1;
  TrainJob job;
};

// Starts no thread and allocates nothing of the model's size. With
// options.print_config only the config is loaded.
absl::StatusOr<std::unique_ptr<Prepared>> Prepare(const RunOptions& options);

// The exit code, if there is nothing more to do: an error, or the config was
// printed.
absl::optional<int> Done(const RunOptions& options,
                         const absl::StatusOr<std::unique_ptr<Prepared>>& p);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_COMMANDS_PREPARE_H_
