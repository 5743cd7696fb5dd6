// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <iostream>
#include <system_error>

#include "trainer/commands/collecting.h"
#include "trainer/commands/commands.h"
#include "trainer/session/run_parts.h"

namespace capstan {
namespace {

absl::Status Collect(const RunOptions& options) {
  if (options.configs.empty()) {
    return absl::InvalidArgumentError(
        "no --config is given; try --config=collect_darkroom.pbtxt");
  }
  PluginHost host(FromCaller(options.plugin_path));
  CAPSTAN_ASSIGN_OR_RETURN(const LoadedConfig loaded,
                           LoadConfig(options.configs, options.overrides,
                                      DefaultConfigContext(&host)));
  if (options.print_config) {
    std::cout << PrintConfig(loaded.config);
    return absl::OkStatus();
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<Collector> collector,
                           CreateCollector(loaded, host));
  if (collector == nullptr) {
    return loaded.Locate(
        FieldError("collect",
                   "isn't set, so that there is nothing to collect: write "
                   "collect { [plugin/PACKAGE.Config] { .. } }"),
        "");
  }
  std::error_code error;
  if (!options.force && std::filesystem::exists(collector->output(), error)) {
    CAPSTAN_RETURN_IF_ERROR(AskToReplace(collector->output()));
  }
  return CollectWithProgress(*collector);
}

}  // namespace

int CollectCommand(const RunOptions& options) {
  const absl::Status status = Collect(options);
  return status.ok() ? 0 : Fail(status);
}

}  // namespace capstan
