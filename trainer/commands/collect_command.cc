// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <iostream>
#include <system_error>

#include "trainer/commands/collecting.h"
#include "trainer/commands/command.h"
#include "trainer/session/run_parts.h"

namespace capstan {
namespace {

class CollectCommand : public Command {
 public:
  void AddFlags(Flags& flags) override {
    AddRunOptions(flags, &options_);
    flags.Add("--force", &options_.force,
              "Replace the data that is there already");
  }
  absl::StatusOr<int> Run(CommandHost&) override;

 private:
  RunOptions options_;
};

const RegisterCommand<CollectCommand> collect(
    40, "collect", "Make the data that a config's `collect` describes");

absl::StatusOr<int> CollectCommand::Run(CommandHost&) {
  if (options_.configs.empty()) {
    return absl::InvalidArgumentError(
        "no --config is given; try --config=collect_darkroom.pbtxt");
  }
  PluginHost host(FromCaller(options_.plugin_path));
  CAPSTAN_ASSIGN_OR_RETURN(const LoadedConfig loaded,
                           LoadConfig(options_.configs, options_.overrides,
                                      DefaultConfigContext(&host)));
  if (options_.print_config) {
    std::cout << PrintConfig(loaded.config);
    return 0;
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
  if (!options_.force && std::filesystem::exists(collector->output(), error)) {
    CAPSTAN_RETURN_IF_ERROR(AskToReplace(collector->output()));
  }
  CAPSTAN_RETURN_IF_ERROR(CollectWithProgress(*collector));
  return 0;
}

}  // namespace
}  // namespace capstan
