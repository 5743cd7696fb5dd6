// SPDX-License-Identifier: Apache-2.0
//
// `trainer [COMMAND] ..`: parses the command line and runs a command.
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <deque>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/types/optional.h"
#include "base/limits.h"
#include "base/status.h"
#include "cluster/launch/launcher.h"
#include "host/config/load_config.h"
#include "host/plugins/plugin_host.h"
#include "inference/load/generator.h"
#include "trainer/commands/command.h"
#include "trainer/commands/prepare.h"
#include "trainer/session/output_folder.h"
#include "trainer/session/run_folders.h"

// Last: LibTorch defines logging macros of its own.
#include <glog/logging.h>
#include <google/protobuf/stubs/logging.h>

namespace capstan {
namespace {

constexpr char kExitCodes[] =
    "Exit codes: 0 done; 1 an error, reported on standard error; 2 wrong "
    "flags; 75 "
    "the run hung, and was ended; 128 + n stopped by signal n. SIGTERM, "
    "SIGINT, "
    "SIGHUP, SIGUSR1 and SIGUSR2 have a run save after its step, to be "
    "resumed; "
    "a second SIGTERM or SIGINT ends it at once.";

class CliFlag : public Flag {
 public:
  explicit CliFlag(CLI::Option* option) : option_(option) {}

  Flag& Type(const char* name) override {
    option_->type_name(name);
    return *this;
  }
  Flag& Required() override {
    option_->required();
    return *this;
  }
  Flag& ShowDefault() override {
    option_->capture_default_str();
    return *this;
  }
  Flag& Positive() override {
    // CLI11's own names the bounds, of 300 digits each.
    option_->check(CLI::Validator(
        [](const std::string& text) {
          double number = 0.0;
          return absl::SimpleAtod(text, &number) && number > 0.0
                     ? std::string()
                     : "must be a number greater than 0, is " + text;
        },
        "POSITIVE"));
    return *this;
  }
  Flag& Check(std::function<std::string(const std::string&)> check) override {
    option_->check(std::move(check));
    return *this;
  }
  Flag& OneEach() override {
    option_->allow_extra_args(false);
    return *this;
  }
  Flag& Delimiter(char delimiter) override {
    option_->delimiter(delimiter);
    return *this;
  }

 private:
  CLI::Option* const option_;
};

class CliFlags : public Flags {
 public:
  // AddRunChanges stores into `changes`.
  CliFlags(CLI::App* app, RunOptions* changes) : app_(app), changes_(changes) {}

  Flag& Add(const char* name, FlagTarget target, const char* help) override {
    const auto add = [&](auto to) -> CLI::Option* {
      if constexpr (std::is_same_v<decltype(to), std::function<void()>>) {
        return app_->add_flag_callback(name, std::move(to), help);
      } else if constexpr (std::is_same_v<decltype(to), bool*>) {
        return app_->add_flag(name, *to, help);
      } else {
        return app_->add_option(name, *to, help);
      }
    };
    return flags_.emplace_back(std::visit(add, std::move(target)));
  }
  void AddRunChanges() override { capstan::AddRunChanges(*this, changes_); }
  void AddRest(std::vector<std::string>* words) override {
    app_->allow_extras();
    rest_ = words;
  }
  // After parsing.
  void TakeRest() const {
    if (rest_ != nullptr) *rest_ = app_->remaining();
  }

 private:
  CLI::App* const app_;
  RunOptions* const changes_;
  std::vector<std::string>* rest_ = nullptr;
  std::deque<CliFlag> flags_;
};

class CoreHost : public CommandHost {
 public:
  RunOptions* changes() { return &changes_; }

  std::string Path(const std::string& path) const override {
    return FromCaller(path);
  }
  std::string ModelFolder(const std::string& path) const override {
    return capstan::ModelFolder(path, RunFoldersHere());
  }
  std::string HubDownloadHint(absl::string_view name,
                              absl::string_view setting) const override {
    return capstan::HubDownloadHint(name, setting);
  }
  absl::StatusOr<Ranks> RanksOfRun() const override {
    return capstan::RanksOfRun();
  }
  absl::StatusOr<int> Train(const std::string& config) override {
    changes_.config_text = config;
    return RunTraining(changes_);
  }

 private:
  RunOptions changes_;
};

// Prints "ERROR: message", with the field it is about, and returns its exit
// code. CANCELLED (stopped by a signal) isn't an error: prints the message
// alone and returns 128 + signal.
int Fail(const absl::Status& status) {
  std::cout.flush();
  if (absl::IsCancelled(status) && StopRequested() != 0) {
    std::cerr << status.message() << std::endl;
    return 128 + StopRequested();
  }
  const absl::optional<std::string> field = FieldOf(status);
  std::cerr << "ERROR: " << (field.has_value() ? *field + ": " : "")
            << status.message() << std::endl;
  return 1;
}

// Plugin commands, found by library name. A library is loaded only when its
// command is run or --help lists it.
class PluginCommands {
 public:
  PluginCommands(int argc, const char* const* argv)
      : words_(argv + 1, argv + argc),
        host_(AllFromCaller(PluginPathIn(words_))),
        help_(Has("-h") || Has("--help")) {}

  absl::Status AddTo(std::vector<RegisteredCommand>* commands) {
    if (words_.empty() || IsIn(*commands, words_[0])) return absl::OkStatus();
    const bool any = std::any_of(
        words_.begin(), words_.end(),
        [](const std::string& word) { return !absl::StartsWith(word, "-"); });
    if (!help_ && !any) return absl::OkStatus();
    for (const std::string& package : host_.Available()) {
      const std::string name = CommandOf(package);
      if (name.empty() || IsIn(*commands, name)) continue;
      if (Has(name)) {
        CAPSTAN_RETURN_IF_ERROR(Add(package, name, commands));
      } else if (help_ && !Add(package, name, commands).ok()) {
        commands->push_back({kOrderOfPlugins, name,
                             "(can't be loaded; `trainer plugins` says why)",
                             nullptr});
      }
    }
    return absl::OkStatus();
  }

 private:
  static std::vector<std::string> PluginPathIn(
      const std::vector<std::string>& words) {
    std::vector<std::string> folders;
    for (size_t i = 0; i < words.size(); ++i) {
      absl::string_view word = words[i];
      if (!absl::ConsumePrefix(&word, "--plugin_path")) continue;
      if (absl::ConsumePrefix(&word, "=")) {
        folders.emplace_back(word);
      } else if (word.empty() && i + 1 < words.size()) {
        folders.push_back(words[i + 1]);
      }
    }
    return folders;
  }

  static bool IsIn(const std::vector<RegisteredCommand>& commands,
                   const std::string& name) {
    return std::any_of(
        commands.begin(), commands.end(),
        [&name](const RegisteredCommand& c) { return c.name == name; });
  }

  bool Has(const std::string& word) const {
    return std::find(words_.begin(), words_.end(), word) != words_.end();
  }

  absl::Status Add(const std::string& package, const std::string& name,
                   std::vector<RegisteredCommand>* commands) {
    const std::string type = package + ".Config";
    CAPSTAN_ASSIGN_OR_RETURN(const LoadedPlugin* plugin, host_.Load(type));
    absl::StatusOr<std::unique_ptr<Command>> made =
        host_.Create<Command>(type, PluginCategory::kCommand, "");
    CAPSTAN_RETURN_IF_ERROR(made.status());
    const std::shared_ptr<Command> command = *std::move(made);
    commands->push_back({kOrderOfPlugins, name, plugin->descriptor->doc,
                         [command] { return command; }});
    return absl::OkStatus();
  }

  const std::vector<std::string> words_;
  PluginHost host_;
  const bool help_;
};

// What holds of every command. `start_seconds`: CLOCK_BOOTTIME of exec.
absl::Status StartProcess(int argc, char** argv, double start_seconds) {
  FLAGS_logtostderr = true;
  FLAGS_minloglevel = google::GLOG_WARNING;
  google::InitGoogleLogging(argv[0]);
  // What a text isn't is told by an error of ours.
  google::protobuf::SetLogHandler(nullptr);
  ThisCall() = {CommandWords(argc, argv), start_seconds};
  MeetLimits();
  return CheckThreads();
}

// The exit code, if there is nothing to run.
absl::optional<int> Parse(int argc, char** argv, CLI::App* app) {
  app->failure_message([](const CLI::App* failed, const CLI::Error& e) {
    return absl::StrCat("ERROR: ", e.what(), " (", failed->get_name(),
                        " --help)\n");
  });
  try {
    app->parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app->exit(e) == 0 ? 0 : 2;
  }
  return absl::nullopt;
}

int Run(Command& command, CommandHost& host) {
  absl::StatusOr<int> code;
  try {
    code = command.Run(host);
  } catch (...) {
    code = CurrentExceptionToStatus();
  }
  return code.ok() ? *code : Fail(code.status());
}

int Main(int argc, char** argv, double start_seconds) {
  const absl::Status started = StartProcess(argc, argv, start_seconds);
  if (!started.ok()) return Fail(started);

  std::vector<RegisteredCommand> commands = RegisteredCommands();
  PluginCommands plugins(argc, argv);
  const absl::Status added = plugins.AddTo(&commands);
  if (!added.ok()) return Fail(added);
  std::stable_sort(commands.begin(), commands.end(),
                   [](const RegisteredCommand& a, const RegisteredCommand& b) {
                     return a.order < b.order;
                   });

  CLI::App app(
      "Capstan trains models on many GPUs, or CPUs. Without a command it "
      "trains.\n  trainer --config=run_distributed.pbtxt");
  app.name("trainer");
  CoreHost host;
  std::deque<CliFlags> flags;
  std::map<const CLI::App*, std::shared_ptr<Command>> made;
  for (const RegisteredCommand& registered : commands) {
    const CLI::App* parsed =
        app.add_subcommand(registered.name, registered.help);
    if (registered.make == nullptr) continue;
    const std::shared_ptr<Command> command = registered.make();
    made[parsed] = command;
    command->AddFlags(flags.emplace_back(app.get_subcommand(registered.name),
                                         host.changes()));
    if (registered.name != "train") continue;
    made[&app] = command;  // default command: train
    command->AddFlags(flags.emplace_back(&app, host.changes()));
    app.get_subcommand(registered.name)->footer(kExitCodes);
  }
  app.footer(kExitCodes);
  app.require_subcommand(0, 1);
  const absl::optional<int> code = Parse(argc, argv, &app);
  if (code.has_value()) return *code;
  for (const CliFlags& of_command : flags) of_command.TakeRest();
  const std::vector<CLI::App*> called = app.get_subcommands();
  return Run(*made.at(called.empty() ? &app : called[0]), host);
}

}  // namespace

int RunProgram(const char* name, const char* help, Command& command, int argc,
               char** argv) {
  timespec now;
  clock_gettime(CLOCK_BOOTTIME, &now);
  const absl::Status started =
      StartProcess(argc, argv,
                   static_cast<double>(now.tv_sec) +
                       1e-9 * static_cast<double>(now.tv_nsec));
  if (!started.ok()) return Fail(started);
  CLI::App app(help);
  app.name(name);
  CoreHost host;
  CliFlags flags(&app, host.changes());
  command.AddFlags(flags);
  const absl::optional<int> code = Parse(argc, argv, &app);
  return code.has_value() ? *code : Run(command, host);
}

}  // namespace capstan

// Looked up by trainer/main.cc.
extern "C" int capstan_main(int argc, char** argv, double start_seconds) {
  return capstan::Main(argc, argv, start_seconds);
}
