// SPDX-License-Identifier: Apache-2.0
#include "trainer/commands/command.h"

#include <dlfcn.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/own_library.h"
#include "base/status.h"
#include "host/config/load_config.h"
#include "host/plugins/plugin_host.h"

namespace capstan {

std::map<std::string, MakeCommand>& CommandMakers() {
  static auto* const makers = new std::map<std::string, MakeCommand>;
  return *makers;
}

absl::Status OpenDesk() {
  constexpr char kDesk[] = "libcapstan_desk.so";
  // Its tests are linked with it.
  if (CommandMakers().count(kNewPlugin) > 0) return absl::OkStatus();
  // Beside the core, its exceptions' types, too, are the core's.
  return OpenOwnLibrary(kDesk, "trainer", "the commands around training",
                        /*symbol=*/nullptr, RTLD_LAZY | RTLD_GLOBAL)
      .status();
}

Call& ThisCall() {
  static auto* const call = new Call;
  return *call;
}

std::vector<std::string> WordsOf(const RunOptions& options) {
  std::vector<std::string> words;
  for (const std::string& config : options.configs) {
    words.push_back("--config=" + config);
  }
  for (const std::string& folder : options.plugin_path) {
    words.push_back("--plugin_path=" + folder);
  }
  for (const std::string& change : options.overrides) {
    words.insert(words.end(), {"--set", change});
  }
  return words;
}

void AddSet(Flags& flags, std::vector<std::string>* overrides,
            const char* help) {
  flags.Add("--set", overrides, help).Type("PATH=VALUE").OneEach();
}

void AddPluginPath(Flags& flags, std::vector<std::string>* plugin_path) {
  flags
      .Add("--plugin_path", plugin_path,
           "A folder with plugins (lib*.so), searched before the trainer's "
           "own; may be given several times")
      .Type("FOLDER")
      .Check([](const std::string& folder) {
        std::error_code error;
        return std::filesystem::is_directory(FromCaller(folder), error)
                   ? ""
                   : folder + " is not a folder";
      });
}

void AddRunChanges(Flags& flags, RunOptions* options) {
  AddSet(flags, &options->overrides,
         "Overrides one field: train.max_steps=10, model.hidden_size=64, "
         "strategy=capstan.single; clears it: collect=; sets a list or adds "
         "to it: profile.steps=[3,4], profile.steps+=5");
  flags.Add("--print_config", &options->print_config,
            "Print the merged config and stop");
  AddPluginPath(flags, &options->plugin_path);
}

void AddRunOptions(Flags& flags, RunOptions* options, const char* names) {
  flags
      .Add(names, &options->configs,
           "A run's config (protobuf text, host/config/run_config.proto), "
           "looked "
           "up from the caller's folder, then in configs/; given several "
           "times, later files merge over earlier ones")
      .Type("FILE")
      // What can't be a file is a mistyped command.
      .Check([](const std::string& file) {
        const ConfigContext here = DefaultConfigContext(nullptr);
        if (file.find_first_of("./") != std::string::npos ||
            !absl::IsNotFound(FindConfig(file, here).status())) {
          return std::string();
        }
        const std::string whole = file + ".pbtxt";
        return absl::StrCat(
            "there is no config ", file,
            DidYouMean(FindConfig(whole, here).ok() ? whole : ""));
      });
  AddRunChanges(flags, options);
}

std::string FromCaller(const std::string& path) {
  const std::filesystem::path caller =
      DefaultConfigContext(nullptr).caller_folder;
  return FollowLatestRun((caller / path).string());
}

std::vector<std::string> AllFromCaller(const std::vector<std::string>& paths) {
  std::vector<std::string> absolute;
  for (const std::string& path : paths) absolute.push_back(FromCaller(path));
  return absolute;
}

}  // namespace capstan
