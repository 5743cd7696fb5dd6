// SPDX-License-Identifier: Apache-2.0
//
// Shared by the commands. A command is a row in command_names.cc, and one file
// with a RegisterFunction (merge_command.cc is a short one); main.cc lists and
// runs them.
#ifndef CAPSTAN_TRAINER_COMMANDS_COMMAND_H_
#define CAPSTAN_TRAINER_COMMANDS_COMMAND_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "plugins/sdk/command.h"

namespace capstan {

struct CommandName {
  const char* name;
  const char* help;  // one line
  bool desk;         // in libcapstan_desk.so
};

// All but plugins' commands, in --help's order, where those follow kNewPlugin.
const std::vector<CommandName>& CommandNames();
constexpr char kNewPlugin[] = "new-plugin";

// By name; complete before main but for libcapstan_desk.so's.
using MakeCommand = std::function<std::shared_ptr<Command>()>;
std::map<std::string, MakeCommand>& CommandMakers();

// Opens libcapstan_desk.so, which registers its commands.
absl::Status OpenDesk();

// A command that is a function of its options, which the flags set.
template <typename Options>
class FunctionCommand : public Command {
 public:
  using AddFlagsFunction = void (*)(Flags& flags, Options* options);
  using RunFunction = absl::StatusOr<int> (*)(const Options& options);

  FunctionCommand(AddFlagsFunction add_flags, RunFunction run)
      : add_flags_(add_flags), run_(run) {}
  void AddFlags(Flags& flags) override { add_flags_(flags, &options_); }
  absl::StatusOr<int> Run(CommandHost&) override { return run_(options_); }

 private:
  const AddFlagsFunction add_flags_;
  const RunFunction run_;
  Options options_;
};

// A static object of this type registers such a command.
template <typename Options>
struct RegisterFunction {
  RegisterFunction(
      const char* name,
      typename FunctionCommand<Options>::AddFlagsFunction add_flags,
      typename FunctionCommand<Options>::RunFunction run) {
    CommandMakers()[name] = [=] {
      return std::make_shared<FunctionCommand<Options>>(add_flags, run);
    };
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
  // Set launch.nodes etc. (train, check).
  absl::optional<int64_t> nodes;
  absl::optional<int64_t> node_rank;
  std::string rendezvous;
  std::vector<std::string> plugin_path;
  bool print_config = false;
  // Whether to make missing `collect` data; otherwise that is an error.
  bool collect = false;
  bool json = false;  // `check` and `plan` print JSON
  // Whether to write the right line into a config where an error knows it.
  bool apply = false;
  // Whether the run is to start; otherwise it's only looked at.
  bool starts_run = false;
  bool force = false;  // `collect` may replace existing data
  // `plan` for this many GPUs, which needn't be here; 0: those that are.
  int planned_gpus = 0;
  // Config text made by a command, instead of `configs`.
  std::string config_text;
};

// The command line's words that say which run it is: configs, plugins' folders
// and changes.
std::vector<std::string> WordsOf(const RunOptions& options);

// --set, which adds to `overrides`.
void AddSet(Flags& flags, std::vector<std::string>* overrides,
            const char* help);
void AddPluginPath(Flags& flags, std::vector<std::string>* plugin_path);
// --set, --print_config and --plugin_path.
void AddRunChanges(Flags& flags, RunOptions* options);
// The configs, as `names` says, and the above. By default words that are no
// flag's are configs, too.
void AddRunOptions(Flags& flags, RunOptions* options,
                   const char* names = "config,--config");

// `trainer train`.
absl::StatusOr<int> RunTraining(const RunOptions& options);

// Resolves relative folders against the caller's (`bazel run` changes the
// working directory), and runs/NAME/latest. No overloads of one name:
// FromCaller({path}) would be either.
std::string FromCaller(const std::string& path);
std::vector<std::string> AllFromCaller(const std::vector<std::string>& paths);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_COMMANDS_COMMAND_H_
