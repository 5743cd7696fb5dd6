// SPDX-License-Identifier: Apache-2.0
//
// `trainer script`: prints a file to submit to a cluster's launcher: the
// templates of script/, with @WORDS@ replaced.
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/files.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "trainer/commands/command.h"
#include "trainer/commands/embedded_files.h"
#include "trainer/commands/function_command.h"
#include "trainer/config/load_config.h"
#include "trainer/launcher/place.h"
#include "trainer/launcher/rank_info.h"
#include "trainer/plugin_host/plugin_host.h"
#include "trainer/session/output_folder.h"

namespace capstan {
namespace {

struct ScriptOptions {
  std::string launcher;
  RunOptions run;
  int64_t nodes = 2;
  int64_t processes = 0;
  bool gpus = false;
  std::string image = "capstan:latest";
};

// A name that DNS, SLURM and torchrun take.
std::string JobName(const std::string& run) {
  std::string name;
  for (const char c : run) {
    const char letter = absl::ascii_isalnum(c) ? absl::ascii_tolower(c) : '-';
    if (letter != '-' || !absl::EndsWith(name, "-")) name += letter;
  }
  // At most 52 characters: a pod's name is a Job's and more, at most 63.
  name = name.substr(0, 52);
  const size_t first = name.find_first_not_of("-0123456789");
  if (first == std::string::npos) return "capstan";
  return name.substr(first, name.find_last_not_of('-') + 1 - first);
}

const char* Template(const std::string& launcher) {
  for (const EmbeddedFile* file = kScriptFiles; file->path != nullptr; ++file) {
    if (absl::StrCat(launcher, ".txt") == file->path) return file->text;
  }
  return nullptr;
}

// Drops lines that begin with @IF_GPUS@, or the word alone.
std::string WithGpus(absl::string_view text, bool gpus) {
  std::vector<std::string> lines;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (absl::ConsumePrefix(&line, "@IF_GPUS@") && !gpus) continue;
    lines.emplace_back(line);
  }
  return absl::StrJoin(lines, "\n");
}

std::string Indented(const std::string& text, int columns) {
  const std::string margin(columns, ' ');
  std::vector<std::string> lines =
      absl::StrSplit(absl::StripTrailingAsciiWhitespace(text), '\n');
  for (std::string& line : lines) {
    if (!line.empty()) line.insert(0, margin);
  }
  return absl::StrJoin(lines, "\n");
}

// The rank's, or on Kubernetes the node's, command line. Restarts resume.
std::vector<std::string> CommandLine(const ScriptOptions& options,
                                     const RunConfig& config,
                                     const ConfigContext& context,
                                     const std::string& job) {
  if (options.launcher == "k8s") {
    return {"/opt/capstan/bin/trainer",
            "--config=/config/run.pbtxt",
            absl::StrCat("--nodes=", options.nodes),
            "--node_rank=$(JOB_COMPLETION_INDEX)",
            absl::StrCat("--rendezvous=", job, "-0.", job, ":29500"),
            "--set",
            absl::StrCat("launch.processes=", options.processes),
            "--set",
            "train.resume=AUTO",
            "--set",
            "output_dir=/shared/" + job};
  }
  std::error_code error;
  const std::filesystem::path self =
      std::filesystem::read_symlink("/proc/self/exe", error);
  std::vector<std::string> words = {self.string()};
  for (const std::string& file : options.run.configs) {
    // Scripts run in any folder.
    words.push_back("--config=" + FindConfig(file, context).value_or(file));
  }
  for (const std::string& folder : AllFromCaller(options.run.plugin_path)) {
    words.push_back("--plugin_path=" + folder);
  }
  const std::string output = config.output_dir().empty()
                                 ? "runs/" + config.name()
                                 : config.output_dir();
  // What the user has set comes later, and wins.
  std::vector<std::string> changes = {
      absl::StrCat("launch.processes=", options.processes),
      "train.resume=AUTO"};
  changes.insert(changes.end(), options.run.overrides.begin(),
                 options.run.overrides.end());
  changes.push_back("output_dir=" + FromCaller(output));
  for (const std::string& change : changes) {
    words.insert(words.end(), {"--set", change});
  }
  return words;
}

absl::StatusOr<int> PrintScript(const ScriptOptions& given) {
  ScriptOptions options = given;
  // "SLURM"
  absl::AsciiStrToLower(&options.launcher);
  const char* text = Template(options.launcher);
  if (text == nullptr) {
    std::vector<std::string> known;
    for (const EmbeddedFile* file = kScriptFiles; file->path != nullptr;
         ++file) {
      known.emplace_back(absl::StripSuffix(file->path, ".txt"));
    }
    return absl::InvalidArgumentError(
        absl::StrCat("--for=", given.launcher,
                     " is no launcher that `trainer script` knows; it knows ",
                     absl::StrJoin(known, ", ")));
  }
  if (options.run.configs.empty()) {
    return absl::InvalidArgumentError(
        "no --config is given; try --config=run_distributed.pbtxt");
  }
  PluginHost host(AllFromCaller(options.run.plugin_path));
  const ConfigContext context = DefaultConfigContext(&host);
  CAPSTAN_ASSIGN_OR_RETURN(
      const LoadedConfig loaded,
      LoadConfig(options.run.configs, options.run.overrides, context));
  const RunConfig& config = loaded.config;
  if (options.run.print_config) {
    std::cout << PrintConfig(config);
    return 0;
  }
  if (config.launch().nodes() != 0 || !config.launch().rendezvous().empty()) {
    return absl::InvalidArgumentError(
        "launch.nodes and launch.rendezvous are the script's to set: clear "
        "them, and give --nodes");
  }
  if (options.launcher == "k8s" && !options.run.plugin_path.empty()) {
    return absl::InvalidArgumentError(
        "--plugin_path: on Kubernetes plugins come with the image, in its "
        "/opt/capstan/plugins");
  }
  ScriptOptions all = options;
  if (all.processes == 0) {
    all.processes = std::max<int64_t>(config.launch().processes(), 0);
  }
  if (all.processes == 0 && all.gpus) {
    return absl::InvalidArgumentError(
        "--gpus asks for a GPU for each rank, but --processes isn't given and "
        "the config's launch.processes is AUTO: this machine doesn't know how "
        "many GPUs a node of the cluster has; say so, e.g. --processes=8");
  }
  // As AUTO does without GPUs.
  if (all.processes == 0) all.processes = kCpuProcesses;
  const std::string job = JobName(config.name());
  const std::vector<std::string> words = CommandLine(all, config, context, job);
  RunConfig without_place = config;
  without_place.clear_launch();
  std::cout << absl::StrReplaceAll(
      WithGpus(text, all.gpus),
      {{"@NAME@", job},
       {"@NODES@", absl::StrCat(all.nodes)},
       {"@PROCESSES@", absl::StrCat(all.processes)},
       {"@RANKS@", absl::StrCat(all.nodes * all.processes)},
       {"@RESTARTS@", absl::StrCat(3 * all.nodes)},
       {"@GPUS_PYTHON@", all.gpus ? "True" : "False"},
       {"@IMAGE@", all.image},
       {"@TOKEN@", RandomToken()},
       {"@COMMAND@", ShellText(words)},
       {"@COMMAND_LIST@", nlohmann::json(words).dump()},
       {"@CONFIG_TEXT@", Indented(PrintConfig(without_place), 4)}});
  return 0;
}

void AddFlags(Flags& flags, ScriptOptions* options) {
  flags
      .Add("--for", &options->launcher,
           "The launcher: slurm, k8s, mpi, torchrun or ray")
      .Type("LAUNCHER")
      .Required();
  flags.Add("--nodes", &options->nodes, "Hosts").ShowDefault().Positive();
  flags
      .Add("--processes", &options->processes,
           "Ranks on each host; default: the config's launch.processes; AUTO "
           "is 2 without --gpus")
      .Positive();
  flags.Add("--gpus", &options->gpus, "Ask for a GPU for each rank");
  flags.Add("--image", &options->image, "k8s: the image with Capstan in it")
      .ShowDefault();
  AddRunOptions(flags, &options->run);
}

const RegisterFunction<ScriptOptions> script(
    140, "script", "Print a file to submit to a cluster: SLURM, Kubernetes, ..",
    AddFlags, PrintScript);

}  // namespace
}  // namespace capstan
