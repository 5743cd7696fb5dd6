// SPDX-License-Identifier: Apache-2.0
//
// Data that is made before a run reads it (RunConfig.collect).
#ifndef CAPSTAN_TRAINER_COMMANDS_COLLECT_COMMAND_H_
#define CAPSTAN_TRAINER_COMMANDS_COLLECT_COMMAND_H_

#include <string>

#include "absl/status/status.h"
#include "plugins/sdk/collector.h"
#include "trainer/config/load_config.h"
#include "trainer/plugin_host/plugin_host.h"

namespace capstan {

// Has `collector` make its data, with a bar on a terminal and a line now and
// then elsewhere. CANCELLED after Ctrl-C or SIGTERM; what was there before is
// there still.
absl::Status CollectWithProgress(Collector& collector);

// Whether data at `path` may be replaced: on a terminal the user is asked.
// ALREADY_EXISTS elsewhere, CANCELLED if the answer isn't yes.
absl::Status AskToReplace(const std::string& path);

// If the config has `collect` and its data isn't there: makes it, or, if not
// `make`, an error that says how to.
absl::Status CollectMissing(const LoadedConfig& loaded, PluginHost& host,
                            bool make);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_COMMANDS_COLLECT_COMMAND_H_
