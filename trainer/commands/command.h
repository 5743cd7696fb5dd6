// SPDX-License-Identifier: Apache-2.0
//
// Shared by the core's commands. A command is one file: a Command with its
// flags and a RegisterCommand (merge_command.cc is a short one); main.cc lists
// and runs the registered ones.
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
  int order;  // ascending in --help; plugin commands are 1000
  std::string name;
  std::string help;  // one line
  std::function<std::shared_ptr<Command>()> make;
};

constexpr int kOrderOfPlugins = 1000;

// In no particular order; complete before main.
std::vector<RegisteredCommand>& RegisteredCommands();

// A static object of this type registers T.
template <typename T>
struct RegisterCommand {
  RegisterCommand(int order, const char* name, const char* help) {
    RegisteredCommands().push_back(
        {order, name, help, [] { return std::make_shared<T>(); }});
  }
};

// How the process was invoked. Constant once a command runs.
struct Call {
  // The command line (CommandWords), to show how to resume.
  std::vector<std::string> words;
  double start_seconds = 0.0;  // CLOCK_BOOTTIME of exec
};
Call& ThisCall();

// Has `command` be all that a program does: a tool of this repository that
// links the core. Returns the exit code.
int RunProgram(const char* name, const char* help, Command& command, int argc,
               char** argv);

// Options of train, check, plan and other commands that read a run's config.
struct RunOptions {
  std::vector<std::string> configs;
  std::vector<std::string> overrides;
  // Those that stand for flags of their own, for errors: "launch.nodes=2" was
  // --nodes=2.
  struct Typed {
    std::string override;
    std::string flag;
    std::string value;
  };
  std::vector<Typed> typed;
  std::vector<std::string> plugin_path;
  bool print_config = false;
  // Whether to make missing `collect` data; otherwise that is an error.
  bool collect = false;
  // Whether the run is to start; otherwise it's only looked at.
  bool starts_run = false;
  bool force = false;  // `collect` may replace existing data
  // `plan` for this many GPUs, which needn't be here; 0: those that are.
  int planned_gpus = 0;
  // Config text made by a command, instead of `configs`.
  std::string config_text;
};

void AddPluginPath(Flags& flags, std::vector<std::string>* plugin_path);
// --set, --print_config and --plugin_path.
void AddRunChanges(Flags& flags, RunOptions* options);
// --config and the above.
void AddRunOptions(Flags& flags, RunOptions* options);

// `trainer train`.
absl::StatusOr<int> RunTraining(const RunOptions& options);

// Resolves relative folders against the caller's (`bazel run` changes the
// working directory), and runs/NAME/latest. No overloads of one name:
// FromCaller({path}) would be either.
std::string FromCaller(const std::string& path);
std::vector<std::string> AllFromCaller(const std::vector<std::string>& paths);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_COMMANDS_COMMAND_H_
