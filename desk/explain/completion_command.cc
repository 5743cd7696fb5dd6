// SPDX-License-Identifier: Apache-2.0
//
// completion: a shell's script that completes commands, flags, the fields that
// --set may name with their plugins and values, and files.
#include <functional>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/error_code.h"
#include "desk/explain/reference_text.h"
#include "trainer/commands/command.h"

namespace capstan {
namespace {

// Notes the names of flags, and no more.
class NotedFlags : public Flags, public Flag {
 public:
  Flag& Add(const char* name, FlagTarget, const char*) override {
    const absl::string_view flag = name;  // or "config,--config"
    const size_t begin = flag.find("--");
    if (begin != flag.npos) names_.emplace_back(flag.substr(begin));
    return *this;
  }
  void AddRunChanges() override {
    for (const char* name : {"--set", "--print_config", "--plugin_path"}) {
      names_.push_back(name);
    }
  }

  Flag& Type(const char*) override { return *this; }
  Flag& Required() override { return *this; }
  Flag& ShowDefault() override { return *this; }
  Flag& Positive() override { return *this; }
  Flag& Check(std::function<std::string(const std::string&)>) override {
    return *this;
  }
  Flag& OneEach() override { return *this; }
  Flag& Delimiter(char) override { return *this; }

  const std::vector<std::string>& names() const { return names_; }

 private:
  std::vector<std::string> names_ = {"--help"};
};

struct CompletionOptions {
  std::string shell;
  std::vector<std::string> plugin_path;
};

constexpr char kBash[] =
#include "desk/explain/completion.inc"
    ;

std::string BashScript(const std::string& commands, const std::string& sets,
                       const std::map<std::string, std::string>& flags) {
  std::string cases;
  for (const auto& [command, names] : flags) {
    absl::StrAppend(&cases, cases.empty() ? "" : "\n", "      ", command,
                    ") flags=\"", names, "\" ;;");
  }
  return absl::StrReplaceAll(kBash, {{"@FLAGS@", flags.at("train")},
                                     {"@CASES@", cases},
                                     {"@COMMANDS@", commands},
                                     {"@SETS@", sets}});
}

std::string FishScript(const std::string& commands, const std::string& sets,
                       const std::map<std::string, std::string>& flags) {
  std::string script = absl::StrCat(
      "# trainer completion fish > ~/.config/fish/completions/trainer.fish\n"
      "complete -c trainer -n __fish_use_subcommand -a '",
      commands, "'\ncomplete -c trainer -l set -x -a '", sets, "'\n");
  for (const auto& [command, names] : flags) {
    for (absl::string_view name :
         absl::StrSplit(names, ' ', absl::SkipEmpty())) {
      if (name == "--set") continue;
      absl::StrAppend(&script,
                      "complete -c trainer -n '__fish_seen_subcommand_from ",
                      command, "' -l ", name.substr(2), "\n");
    }
  }
  return script;
}

absl::StatusOr<int> Complete(const CompletionOptions& options) {
  PluginHost host(AllFromCaller(options.plugin_path));
  host.BuildAll();
  const std::string sets = absl::StrJoin(SetWords(Reference(&host)), " ");
  std::vector<std::string> commands;
  std::map<std::string, std::string> flags;
  for (const auto& [name, make] : CommandMakers()) {
    NotedFlags noted;
    make()->AddFlags(noted);
    commands.push_back(name);
    flags[name] = absl::StrJoin(noted.names(), " ");
  }
  for (const std::string& package : host.Available()) {
    const std::string name = CommandOf(package);
    if (!name.empty()) commands.push_back(name);
  }
  const std::string all = absl::StrJoin(commands, " ");
  if (options.shell == "bash" || options.shell == "zsh") {
    std::cout << BashScript(all, sets, flags);
  } else if (options.shell == "fish") {
    std::cout << FishScript(all, sets, flags);
  } else {
    return WithCode(absl::InvalidArgumentError(absl::StrCat(
                        "\"", options.shell, "\": name bash, zsh or fish")),
                    "command/word");
  }
  return 0;
}

const RegisterFunction<CompletionOptions> completion(
    "completion",
    [](Flags& flags, CompletionOptions* options) {
      flags.Add("SHELL", &options->shell, "bash, zsh or fish").Required();
      AddPluginPath(flags, &options->plugin_path);
    },
    Complete);

}  // namespace
}  // namespace capstan
