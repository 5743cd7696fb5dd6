// SPDX-License-Identifier: Apache-2.0
//
// A command of the trainer, `trainer NAME --flags`, built in or from a plugin,
// whose package sets the name: VENDOR.command_NAME, with '_' for '-'.
// libcapstan_command_llada_data.so is `trainer llada-data`.
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

// Where a flag's value goes. A bool becomes true; a function is called.
using FlagTarget =
    std::variant<bool*, int*, int64_t*, uint64_t*, double*, std::string*,
                 std::vector<int64_t>*, std::vector<std::string>*,
                 absl::optional<int64_t>*, absl::optional<double>*,
                 absl::optional<std::string>*, std::function<void()>>;

// A flag made by Flags::Add. Each function returns *this.
class Flag {
 public:
  virtual ~Flag();
  // Names the value in --help ("FOLDER"); by default its type.
  virtual Flag& Type(const char* name) = 0;
  virtual Flag& Required() = 0;
  virtual Flag& ShowDefault() = 0;  // the target's present value, in --help
  virtual Flag& Positive() = 0;     // only numbers above 0
  // `check` returns what is wrong with a value, or "".
  virtual Flag& Check(std::function<std::string(const std::string&)> check) = 0;
  virtual Flag& OneEach() = 0;  // one value per flag, which may be repeated
  virtual Flag& Delimiter(char delimiter) = 0;  // splits a list's value
};

class Flags {
 public:
  virtual ~Flags();
  // `name` is "--data_dir". `target`, set before Run, must outlive the flags.
  virtual Flag& Add(const char* name, FlagTarget target, const char* help) = 0;
  // Adds --set, --print_config and --plugin_path, which Train applies.
  virtual void AddRunChanges() = 0;
  // Stores words that are none of the flags in `words`, instead of an error.
  virtual void AddRest(std::vector<std::string>* words);
};

// The trainer's services for a plugin's command.
class CommandHost {
 public:
  struct Ranks {
    int count = 1;
    bool from_environment = false;  // started by torchrun
  };

  virtual ~CommandHost();
  // A path from the command line, made absolute; follows runs/NAME/latest.
  virtual std::string Path(const std::string& path) const = 0;
  // Returns a run's newest model (final/, else a checkpoint), or `path` itself.
  virtual std::string ModelFolder(const std::string& path) const = 0;
  // The end of an error about a missing model folder: how to download `name`,
  // if the Hugging Face Hub may have it, and set `setting` to it; else "".
  virtual std::string HubDownloadHint(absl::string_view name,
                                      absl::string_view setting) const = 0;
  // The ranks of a run whose config leaves launch.processes to the trainer.
  virtual absl::StatusOr<Ranks> RanksOfRun() const = 0;
  // Trains like `trainer --config=..`; returns the exit code. Run's last call.
  virtual absl::StatusOr<int> Train(const std::string& config) = 0;
};

class Command {
 public:
  virtual ~Command();
  // Declares the flags, members of this object. May be called twice.
  virtual void AddFlags(Flags& flags) = 0;
  // Returns the exit code. An error, maybe of a flag (FieldError), is printed
  // in one line and exits with 1. May throw.
  virtual absl::StatusOr<int> Run(CommandHost& host) = 0;

 private:
  // Room to grow (plugin.h).
  virtual void Room1();
  virtual void Room2();
  virtual void Room3();
  virtual void Room4();
};

struct NoConfig {  // commands have flags instead
  bool ParseFromArray(const void*, int size) { return size == 0; }
};

}  // namespace capstan

// Replaces CAPSTAN_PLUGIN for a Command with a static Create(const NoConfig&):
// CAPSTAN_COMMAND("capstan.command_llada", LladaCommand, "help");
#define CAPSTAN_COMMAND(package, Impl, help) \
  CAPSTAN_PLUGIN_AS(package ".Config", Command, Impl, ::capstan::NoConfig, help)

#endif  // CAPSTAN_PLUGINS_SDK_COMMAND_H_
