// SPDX-License-Identifier: Apache-2.0
//
// Collecting data before a run reads it (RunConfig.collect).
#ifndef CAPSTAN_TRAINER_COMMANDS_COLLECT_COMMAND_H_
#define CAPSTAN_TRAINER_COMMANDS_COLLECT_COMMAND_H_

#include <string>

#include "absl/status/status.h"
#include "host/config/load_config.h"
#include "host/plugins/plugin_host.h"
#include "plugins/sdk/collector.h"

namespace capstan {

// Whether data at `path` may be replaced. Asks the user on a terminal,
// CANCELLED unless the answer is yes; ALREADY_EXISTS elsewhere.
absl::Status AskToReplace(const std::string& path);

// If the config has `collect` and its data is missing, makes it, or, unless
// `make`, returns an error that says how to.
absl::Status CollectMissing(const LoadedConfig& loaded, PluginHost& host,
                            bool make);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_COMMANDS_COLLECT_COMMAND_H_
