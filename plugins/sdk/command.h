// SPDX-License-Identifier: Apache-2.0
//
// A command of the trainer, `trainer NAME --flags`: one of the core's, or one
// that a plugin brings. The plugin's package names it: VENDOR.command_NAME, '_'
// for '-', so that libcapstan_command_llada_data.so is `trainer llada-data`.
#ifndef CAPSTAN_PLUGINS_SDK_COMMAND_H_
#define CAPSTAN_PLUGINS_SDK_COMMAND_H_

#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "plugins/sdk/plugin.h"

namespace capstan {

// Where a flag's value goes. A bool is true where the flag is given; a function
// is called for a flag without a value.
using FlagTarget =
    std::variant<bool*, int*, int64_t*, uint64_t*, double*, std::string*,
                 std::vector<int64_t>*, std::vector<std::string>*,
                 absl::optional<int64_t>*, absl::optional<double>*,
                 absl::optional<std::string>*, std::function<void()>>;

// One flag, as Flags::Add has made it. Each function returns *this.
class Flag {
 public:
  virtual ~Flag();
  // What --help calls the value, "FOLDER"; default: its type.
  virtual Flag& Type(const char* name) = 0;
  virtual Flag& Required() = 0;
  // --help shows the value that the target has now.
  virtual Flag& ShowDefault() = 0;
  // A number above 0.
  virtual Flag& Positive() = 0;
  // Returns what is wrong with a value; "" if nothing is.
  virtual Flag& Check(std::function<std::string(const std::string&)> check) = 0;
  // Of a list: a value each time that the flag is given, not several after it.
  virtual Flag& OneEach() = 0;
  // Of a list: the values of one word are separated by `delimiter`.
  virtual Flag& Delimiter(char delimiter) = 0;
};

// A command's flags.
class Flags {
 public:
  virtual ~Flags();
  // name: "--data_dir". The target is written to before Command::Run; it
  // outlives the flags.
  virtual Flag& Add(const char* name, FlagTarget target, const char* help) = 0;
  // --set, --print_config and --plugin_path of a command that ends in
  // CommandHost::Train, which heeds them.
  virtual void AddRunChanges() = 0;
};

// What the trainer does for a command of a plugin.
class CommandHost {
 public:
  struct Ranks {
    int count = 1;
    bool from_environment = false;  // torchrun has started them
  };

  virtual ~CommandHost();
  // A path of the command line, absolute: relative to the caller's folder, and
  // runs/NAME/latest followed.
  virtual std::string Path(const std::string& path) const = 0;
  // The newest model of a run's folder (final/, else the newest checkpoint);
  // other folders stand for themselves.
  virtual std::string ModelFolder(const std::string& path) const = 0;
  // To end an error about a model's folder, `name`, that doesn't exist: how to
  // download it if it may be one of the Hugging Face Hub, and that `setting`
  // names it then; "" if it can't be one.
  virtual std::string HubDownloadHint(absl::string_view name,
                                      absl::string_view setting) const = 0;
  // Of a run whose config leaves launch.processes to the trainer.
  virtual absl::StatusOr<Ranks> RanksOfRun() const = 0;
  // Trains as `trainer --config=..` does, by a config given as text, and
  // returns the process's exit code. Last in a Run.
  virtual absl::StatusOr<int> Train(const std::string& config) = 0;
};

class Command {
 public:
  virtual ~Command();
  // Declares the flags, which are this object's members. May be called twice.
  virtual void AddFlags(Flags& flags) = 0;
  // Returns the process's exit code. An error is printed in one line, exit code
  // 1; it may name the flag that it is about (FieldError). May throw.
  virtual absl::StatusOr<int> Run(CommandHost& host) = 0;
};

// The config of a command: it has flags instead.
struct NoConfig {
  bool ParseFromArray(const void*, int size) { return size == 0; }
};

}  // namespace capstan

// In place of CAPSTAN_PLUGIN, for a Command with a static Create(const
// NoConfig&): CAPSTAN_COMMAND("capstan.command_llada", LladaCommand, "help");
#define CAPSTAN_COMMAND(package, Impl, help) \
  CAPSTAN_PLUGIN_AS(package ".Config", Command, Impl, ::capstan::NoConfig, help)

#endif  // CAPSTAN_PLUGINS_SDK_COMMAND_H_
