// SPDX-License-Identifier: Apache-2.0
//
// What the core's commands share. A command is one file: a Command with its
// flags and a RegisterCommand for it (merge_command.cc is a short one); main.cc
// lists and runs what is registered.
#ifndef CAPSTAN_TRAINER_COMMANDS_COMMAND_H_
#define CAPSTAN_TRAINER_COMMANDS_COMMAND_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/sdk/command.h"

namespace capstan {

struct RegisteredCommand {
  int order;  // --help lists them in ascending order, those of plugins at 1000
  std::string name;
  std::string help;  // one line
  std::function<std::shared_ptr<Command>()> make;
};

constexpr int kOrderOfPlugins = 1000;

// In no particular order. Complete before main.
std::vector<RegisteredCommand>& RegisteredCommands();

// A static object of this type registers T.
template <typename T>
struct RegisterCommand {
  RegisterCommand(int order, const char* name, const char* help) {
    RegisteredCommands().push_back(
        {order, name, help, [] { return std::make_shared<T>(); }});
  }
};

// How the process was called. Constant once a command runs.
struct Call {
  // The words of the command line (CommandWords), to say how to go on.
  std::vector<std::string> words;
  double start_seconds = 0.0;  // on CLOCK_BOOTTIME, when it was executed
};
Call& ThisCall();

// What train, check, plan and others that read a run's config take.
struct RunOptions {
  std::vector<std::string> configs;
  std::vector<std::string> overrides;
  std::vector<std::string> plugin_path;
  bool print_config = false;
  // What the config's `collect` makes is made where it is missing; else that is
  // an error.
  bool collect = false;
  bool force = false;  // `collect` may replace data that is there
  // In place of configs: one's text, which a command has made.
  std::string config_text;
};

void AddPluginPath(Flags& flags, std::vector<std::string>* plugin_path);
// --set, --print_config and --plugin_path.
void AddRunChanges(Flags& flags, RunOptions* options);
// --config and those.
void AddRunOptions(Flags& flags, RunOptions* options);

// `trainer train`.
absl::StatusOr<int> RunTraining(const RunOptions& options);

// Relative folders made absolute against the caller's (under `bazel run` the
// process runs elsewhere), runs/NAME/latest followed.
std::vector<std::string> FromCaller(const std::vector<std::string>& folders);
std::string FromCaller(const std::string& path);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_COMMANDS_COMMAND_H_
