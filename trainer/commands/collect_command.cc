// SPDX-License-Identifier: Apache-2.0
#include "trainer/commands/collect_command.h"

#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "cluster/launch/launcher.h"
#include "cluster/launch/signals.h"
#include "trainer/commands/command.h"
#include "trainer/metrics/console.h"
#include "trainer/metrics/progress_bar.h"
#include "trainer/session/run_parts.h"

namespace capstan {
namespace {

// With a progress bar on a terminal, or an occasional line elsewhere. CANCELLED
// after Ctrl-C or SIGTERM; existing data is then kept.
absl::Status CollectWithProgress(Collector& collector) {
  const Console console(STDOUT_FILENO);
  console.Write(absl::StrCat("collecting ", collector.output(), "\n"));
  double seconds = 0.0;
  {
    const StopSignals signals;
    WorkBar bar("collecting", STDOUT_FILENO);
    absl::Status status;
    try {
      status = collector.Collect([&bar](double done, absl::string_view words) {
        bar.Show(done, words);
        return StopRequested() == 0;
      });
    } catch (...) {
      return CurrentExceptionToStatus();
    }
    if (absl::IsCancelled(status) && StopRequested() != 0) {
      return absl::CancelledError(absl::StrCat(
          "collecting was stopped: ", collector.output(),
          " is made whole or not at all, so nothing of it is kept; the same "
          "command begins anew"));
    }
    CAPSTAN_RETURN_IF_ERROR(status);
    seconds = bar.Seconds();
  }
  console.Write(absl::StrFormat("collected in %s\n", ClockTime(seconds)));
  return absl::OkStatus();
}

}  // namespace

absl::Status AskToReplace(const std::string& path) {
  if (isatty(STDIN_FILENO) == 0 || isatty(STDOUT_FILENO) == 0) {
    return absl::AlreadyExistsError(
        absl::StrCat(path, " is there already: --force collects it anew"));
  }
  std::cout << path << " is there already. Collect it anew? [y/N] "
            << std::flush;
  std::string answer;
  std::getline(std::cin, answer);
  absl::AsciiStrToLower(&answer);
  if (answer == "y" || answer == "yes") return absl::OkStatus();
  return absl::CancelledError(absl::StrCat(path, " stays as it is"));
}

absl::Status CollectMissing(const LoadedConfig& loaded, PluginHost& host,
                            bool make) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<Collector> collector,
                           CreateCollector(loaded, host));
  std::error_code error;
  if (collector == nullptr) return absl::OkStatus();
  if (std::filesystem::exists(collector->output(), error)) {
    return loaded.Locate(collector->CheckOutput(), "collect");
  }
  if (!make) {
    return loaded.Locate(
        absl::NotFoundError(absl::StrCat(
            collector->output(),
            " isn't there yet: make it with `trainer collect --config=..`")),
        "collect");
  }
  return CollectWithProgress(*collector);
}

namespace {

void AddFlags(Flags& flags, RunOptions* options) {
  AddRunOptions(flags, options);
  flags.Add("--force", &options->force,
            "Replace the data that is there already");
}

absl::StatusOr<int> Collect(const RunOptions& options) {
  if (options.configs.empty()) {
    return absl::InvalidArgumentError(
        "no --config is given; try --config=collect_darkroom.pbtxt");
  }
  PluginHost host(AllFromCaller(options.plugin_path));
  CAPSTAN_ASSIGN_OR_RETURN(const LoadedConfig loaded,
                           LoadConfig(options.configs, options.overrides,
                                      DefaultConfigContext(&host)));
  if (options.print_config) {
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
  if (!options.force && std::filesystem::exists(collector->output(), error)) {
    CAPSTAN_RETURN_IF_ERROR(AskToReplace(collector->output()));
  }
  CAPSTAN_RETURN_IF_ERROR(CollectWithProgress(*collector));
  return 0;
}

const RegisterFunction<RunOptions> collect("collect", AddFlags, Collect);

}  // namespace
}  // namespace capstan
