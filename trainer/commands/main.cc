// SPDX-License-Identifier: Apache-2.0
//
// `trainer [COMMAND] ..`: parses the command line and runs a command.
#include <c10/util/Exception.h>
#include <time.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <deque>
#include <exception>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/types/optional.h"
#include "base/error_code.h"
#include "base/files.h"
#include "base/limits.h"
#include "base/status.h"
#include "cluster/launch/launcher.h"
#include "host/config/field_names.h"
#include "host/config/load_config.h"
#include "host/plugins/plugin_host.h"
#include "inference/load/generator.h"
#include "trainer/commands/command.h"
#include "trainer/commands/prepare.h"
#include "trainer/metrics/console.h"
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
  CliFlags(CLI::App* app, RunOptions* changes) : app_(app), changes_(changes) {
    app->validate_positionals();
  }

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
  const int error = ErrnoOf(status);
  const absl::Status coded =
      WithCode(status, error == ENOENT   ? "path/missing"
                       : error == ENOSPC ? "disk/full"
                       : field.has_value() && absl::StartsWith(*field, "--")
                           ? "command/flag"
                           : "");
  // A text from a file may hold a terminal's commands.
  std::cerr << "ERROR: "
            << PrintableText(absl::StrCat(
                   field.has_value() ? *field + ": " : "", TextWithCode(coded)))
            << std::endl;
  return 1;
}

// A command of this invocation. Without `make` it is listed, and no more.
struct ListedCommand {
  std::string name;
  std::string help;
  MakeCommand make;
};

// Plugin commands, found by library name. A library is loaded only when its
// command is run or --help lists it.
class PluginCommands {
 public:
  explicit PluginCommands(const std::vector<std::string>& words)
      : words_(words),
        host_(AllFromCaller(PluginPathIn(words_))),
        help_(Has("-h") || Has("--help")) {}

  // Those that are named, or all for --help.
  absl::StatusOr<std::vector<ListedCommand>> Find() {
    std::vector<ListedCommand> found;
    if (words_.empty() || IsOwn(words_[0])) return found;
    const bool any = std::any_of(
        words_.begin(), words_.end(),
        [](const std::string& word) { return !absl::StartsWith(word, "-"); });
    if (!help_ && !any) return found;
    for (const std::string& package : host_.Available()) {
      const std::string name = CommandOf(package);
      if (name.empty() || IsOwn(name)) continue;
      if (Has(name)) {
        CAPSTAN_RETURN_IF_ERROR(Add(package, name, &found));
      } else if (help_ && !host_.IsBuilt(package)) {
        found.push_back({name, "(built at its first use)", nullptr});
      } else if (help_ && !Add(package, name, &found).ok()) {
        found.push_back(
            {name, "(can't be loaded; `trainer plugins` says why)", nullptr});
      }
    }
    return found;
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

  static bool IsOwn(const std::string& name) {
    return absl::c_any_of(CommandNames(), [&name](const CommandName& own) {
      return own.name == name;
    });
  }

  bool Has(const std::string& word) const {
    return std::find(words_.begin(), words_.end(), word) != words_.end();
  }

  absl::Status Add(const std::string& package, const std::string& name,
                   std::vector<ListedCommand>* found) {
    const std::string type = package + ".Config";
    CAPSTAN_ASSIGN_OR_RETURN(const LoadedPlugin* plugin, host_.Load(type));
    absl::StatusOr<std::unique_ptr<Command>> made =
        host_.Create<Command>(type, PluginCategory::kCommand, "");
    CAPSTAN_RETURN_IF_ERROR(made.status());
    const std::shared_ptr<Command> command = *std::move(made);
    found->push_back(
        {name, plugin->descriptor->doc, [command] { return command; }});
    return absl::OkStatus();
  }

  const std::vector<std::string> words_;
  PluginHost host_;
  const bool help_;
};

// A tensor that is freed while the failure of its GPU unwinds asks the GPU
// again, and LibTorch throws where nothing may: no crash of ours.
[[noreturn]] void OnTerminate() {
  try {
    if (std::current_exception() != nullptr) {
      std::rethrow_exception(std::current_exception());
    }
  } catch (const c10::AcceleratorError& error) {
    const std::string text = error.what_without_backtrace();
    _exit(Fail(WithCode(
        absl::InternalError(absl::StrCat(
            "the GPU has failed: ", text.substr(0, text.find('\n')),
            "; dmesg (lines with Xid) and nvidia-smi -q tell whether the card "
            "is at fault; a run goes on with train.resume=AUTO")),
        "gpu/failed")));
  } catch (...) {
  }
  std::abort();
}

// What holds of every command. `start_seconds`: CLOCK_BOOTTIME of exec.
absl::Status StartProcess(int argc, char** argv, double start_seconds) {
  FLAGS_logtostderr = true;
  FLAGS_minloglevel = google::GLOG_WARNING;
  google::InitGoogleLogging(argv[0]);
  // What a text isn't is told by an error of ours.
  google::protobuf::SetLogHandler(nullptr);
  std::set_terminate(OnTerminate);
  ThisCall() = {CommandWords(argc, argv), start_seconds};
  MeetLimits();
  return CheckThreads();
}

// Other trainers' words for a command.
constexpr const char* kOtherNames[][2] = {
    {"benchmark", "eval"}, {"evaluate", "eval"},      {"test", "eval"},
    {"finetune", "train"}, {"fit", "train"},          {"sft", "train"},
    {"infer", "generate"}, {"inference", "generate"}, {"predict", "generate"},
    {"list", "ls"},        {"validate", "check"},     {"preview", "data"},
};

std::string UnknownFlag(const CLI::App& called, const std::string& word) {
  const std::string flag = word.substr(0, word.find('='));
  std::vector<std::string> names;
  for (const CLI::Option* option : called.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      names.push_back("--" + name);
    }
  }
  std::string meant = NearestName(flag, names);
  if (meant.empty()) {
    std::string key = flag;
    key.erase(0, key.find_first_not_of('-'));
    const std::vector<NamedField> fields = FieldsCalled(key, RunConfig());
    if (!fields.empty() && LeftOut(fields[0])) {
      return absl::StrCat("there is no flag ", flag, "; ", fields[0].instead,
                          " [command/flag]");
    }
    if (!fields.empty()) meant = absl::StrCat("--set ", fields[0].path, "=..");
  }
  return absl::StrCat("there is no flag ", flag, DidYouMean(meant),
                      " [command/flag]");
}

// What a word that `called` doesn't expect belongs to: "--model=my_model"; "":
// not known. `before`: the word before it.
std::string MeantByWord(const CLI::App& called, const std::string& before,
                        const std::string& word) {
  // --set train.max_steps 5
  absl::string_view path = before;
  absl::ConsumePrefix(&path, "--set=");
  const CLI::Option* const set = called.get_option_no_throw("--set");
  if (set != nullptr && !path.empty() &&
      absl::c_linear_search(set->results(), path) &&
      !absl::StrContains(path, "=")) {
    return absl::StrCat("--set ", path, "=", word);
  }
  if (called.get_option_no_throw("--config") != nullptr) {
    const std::string file = word + ".pbtxt";
    if (FindConfig(file, DefaultConfigContext(nullptr)).ok()) return file;
  }
  for (const CLI::Option* option : called.get_options()) {
    if (option->get_required() && option->count() == 0 &&
        !option->get_lnames().empty()) {
      return absl::StrCat("--", option->get_lnames()[0], "=", word);
    }
  }
  return "";
}

// The error of words[at], which `called` doesn't expect.
std::string UnexpectedWord(const CLI::App& app, const CLI::App& called,
                           const std::vector<std::string>& words, size_t at) {
  const std::string& word = words[at];
  if (absl::StartsWith(word, "-")) return UnknownFlag(called, word);
  std::string meant = MeantByWord(called, at == 0 ? "" : words[at - 1], word);
  if (&called != &app) {
    return absl::StrCat("\"", word, "\" is a word too many", DidYouMean(meant),
                        " [command/word]");
  }
  if (meant.empty()) {
    std::vector<std::string> names;
    for (const CLI::App* command :
         app.get_subcommands([](const CLI::App*) { return true; })) {
      names.push_back(command->get_name());
    }
    meant = NearestName(word, names);
    for (const auto& [other, ours] : kOtherNames) {
      if (word == other) meant = ours;
    }
  }
  return absl::StrCat("there is no command \"", word, "\"", DidYouMean(meant),
                      " [command/unknown]");
}

// CLI11's error about a flag's value, in our words; its others stay.
std::string InOurWords(const CLI::App& called, const std::string& error) {
  constexpr char kCode[] = " [command/flag]";
  absl::string_view rest = error;
  if (absl::ConsumePrefix(&rest, "Could not convert: ")) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(rest, absl::MaxSplits(" = ", 1));
    const CLI::Option* const option = called.get_option_no_throw(parts.first);
    const std::string type = option == nullptr ? "" : option->get_type_name();
    const char* const wanted =
        option != nullptr && option->get_items_expected_max() == 0
            ? "takes no value"
        : absl::StartsWith(type, "UINT")
            ? "must be a whole number, 0 or greater"
        : absl::StartsWith(type, "INT") ? "must be a whole number"
                                        : "must be a number";
    return absl::StrCat(parts.first, ": ", wanted, ", is ", parts.second,
                        kCode);
  }
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(error, absl::MaxSplits(": ", 1));
  absl::string_view why = parts.second;
  if (absl::ConsumePrefix(&why, "At Most 1 required but received ")) {
    return absl::StrCat(parts.first, ": takes one value, and is given ", why,
                        ": leave all but one out", kCode);
  }
  if (absl::ConsumePrefix(&why, "1 required ") &&
      absl::ConsumeSuffix(&why, " missing")) {
    absl::ConsumeSuffix(&why, ":POSITIVE");
    return absl::StrCat(parts.first, ": needs a value: ", parts.first, "=", why,
                        kCode);
  }
  return error;
}

// The exit code, if there is nothing to run.
absl::optional<int> Parse(int argc, char** argv, CLI::App* app) {
  std::string error;
  bool expected = true;  // but for words that have no place
  try {
    app->parse(argc, argv);
    return absl::nullopt;
  } catch (const CLI::Success& e) {
    return app->exit(e);
  } catch (const CLI::ExtrasError& e) {
    error = e.what();
    expected = false;
  } catch (const CLI::RequiredError& e) {
    // A misspelt flag is the reason why the right one isn't there.
    error = e.what();
    expected = false;
  } catch (const CLI::ParseError& e) {
    error = e.what();
  }
  const std::vector<CLI::App*> commands = app->get_subcommands();
  const CLI::App& called = commands.empty() ? *app : *commands[0];
  error = InOurWords(called, error);
  const std::vector<std::string> words(argv + 1, argv + argc);
  const std::vector<std::string> extras = app->remaining(/*recurse=*/true);
  if (!expected && !extras.empty() && !called.get_allow_extras()) {
    const auto at = std::find(words.begin(), words.end(), extras[0]);
    if (at != words.end()) {
      error = UnexpectedWord(*app, called, words, at - words.begin());
    }
  }
  std::cerr << "ERROR: " << error << " (" << called.get_name() << " --help)"
            << std::endl;
  return 2;
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

// `code`, unless what was printed didn't reach standard output. A run doesn't
// end for that: its files are what counts.
int IfPrinted(int code) {
  std::cout.flush();
  if (std::cout || code != 0) return code;
  return Fail(absl::DataLossError("standard output can't be written"));
}

// Whether a command of libcapstan_desk.so is called: named, and no other before
// it. A word behind a flag may be its value.
bool CallsDesk(const std::vector<std::string>& words) {
  for (size_t i = 0; i < words.size(); ++i) {
    for (const CommandName& own : CommandNames()) {
      if (words[i] != own.name) continue;
      if (i == 0 || !absl::StartsWith(words[i - 1], "--") ||
          absl::StrContains(words[i - 1], "=")) {
        return own.desk;
      }
    }
  }
  return false;
}

// All commands, in --help's order.
absl::StatusOr<std::vector<ListedCommand>> ListCommands(
    const std::vector<std::string>& words) {
  if (CallsDesk(words)) CAPSTAN_RETURN_IF_ERROR(OpenDesk());
  PluginCommands plugins(words);
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<ListedCommand> of_plugins,
                           plugins.Find());
  std::vector<ListedCommand> all;
  for (const CommandName& own : CommandNames()) {
    const auto maker = CommandMakers().find(own.name);
    all.push_back({own.name, own.help,
                   maker == CommandMakers().end() ? nullptr : maker->second});
    if (own.name == absl::string_view(kNewPlugin)) {
      all.insert(all.end(), of_plugins.begin(), of_plugins.end());
    }
  }
  return all;
}

int Main(int argc, char** argv, double start_seconds) {
  static char help[] = "--help";
  if (argc == 2 && absl::string_view(argv[1]) == "help") argv[1] = help;
  const absl::Status started = StartProcess(argc, argv, start_seconds);
  if (!started.ok()) return Fail(started);
  const absl::StatusOr<std::vector<ListedCommand>> commands =
      ListCommands(std::vector<std::string>(argv + 1, argv + argc));
  if (!commands.ok()) return Fail(commands.status());

  CLI::App app(
      "Capstan trains models on many GPUs, or CPUs. Without a command it "
      "trains.\n  trainer run_distributed.pbtxt");
  app.name("trainer");
  app.set_version_flag("--version", "Capstan " CAPSTAN_VERSION,
                       "Print the version and exit");
  CoreHost host;
  std::deque<CliFlags> flags;
  std::map<const CLI::App*, std::shared_ptr<Command>> made;
  for (const ListedCommand& listed : *commands) {
    const CLI::App* parsed = app.add_subcommand(listed.name, listed.help);
    if (listed.make == nullptr) continue;
    const std::shared_ptr<Command> command = listed.make();
    made[parsed] = command;
    command->AddFlags(
        flags.emplace_back(app.get_subcommand(listed.name), host.changes()));
    if (listed.name != "train") continue;
    made[&app] = command;  // default command: train
    command->AddFlags(flags.emplace_back(&app, host.changes()));
    app.get_subcommand(listed.name)->footer(kExitCodes);
  }
  app.footer(kExitCodes);
  app.require_subcommand(0, 1);
  const absl::optional<int> code = Parse(argc, argv, &app);
  if (code.has_value()) return IfPrinted(*code);
  for (const CliFlags& of_command : flags) of_command.TakeRest();
  const std::vector<CLI::App*> called = app.get_subcommands();
  if (called.empty() || called[0]->get_name() == "train") {
    return Run(*made.at(&app), host);
  }
  const auto command = made.find(called[0]);
  if (command == made.end()) {
    return Fail(absl::FailedPreconditionError(absl::StrCat(
        "`trainer ", called[0]->get_name(), "`: write the command first")));
  }
  return IfPrinted(Run(*command->second, host));
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
