// SPDX-License-Identifier: Apache-2.0
//
// `trainer script`: prints a file to submit to a cluster's launcher: the
// templates of script/, with @WORDS@ replaced.
#include "desk/script/script_command.h"

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/embedded_files.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"
#include "cluster/launch/place.h"
#include "cluster/launch/rank_info.h"
#include "host/config/load_config.h"
#include "host/plugins/plugin_host.h"
#include "nlohmann/json.hpp"
#include "trainer/commands/command.h"
#include "trainer/session/output_folder.h"

namespace capstan {

extern const EmbeddedFile kScriptFiles[];  // templates/

namespace {

// Where pods find --shared.
constexpr char kShared[] = "/shared";

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

const char* FileText(const std::string& name) {
  for (const EmbeddedFile* file = kScriptFiles; file->path != nullptr; ++file) {
    if (name == file->path) return file->text;
  }
  return nullptr;
}

// Drops lines that begin with the word of what isn't so, or the word alone.
std::string WithConditions(absl::string_view text,
                           const ScriptOptions& options) {
  const std::pair<const char*, bool> conditions[] = {
      {"@IF_GPUS@", options.gpus},
      {"@IF_NO_GPUS@", !options.gpus},
      {"@IF_RDMA@", !options.rdma.empty()}};
  std::vector<std::string> lines;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    bool kept = true;
    for (const auto& [word, holds] : conditions) {
      if (absl::ConsumePrefix(&line, word)) kept = kept && holds;
    }
    if (kept) lines.emplace_back(line);
  }
  return absl::StrJoin(lines, "\n");
}

// "cpu=16" and the like as an object.
absl::StatusOr<nlohmann::ordered_json> ObjectOf(
    const char* flag, const std::vector<std::string>& texts) {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    if (equals == 0 || equals == std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat(flag, "=", text, ": write NAME=VALUE"));
    }
    object[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return object;
}

// What a pod asks for, as JSON, which YAML has, too. Only cpu is no limit:
// Kubernetes would stop the ranks for parts of each second.
absl::StatusOr<nlohmann::ordered_json> Resources(const ScriptOptions& options) {
  std::vector<std::string> asked = {absl::StrCat("cpu=", options.processes)};
  asked.insert(asked.end(), options.requests.begin(), options.requests.end());
  if (options.gpus) {
    asked.push_back(absl::StrCat("nvidia.com/gpu=", options.processes));
  }
  if (!options.rdma.empty()) asked.push_back(options.rdma);
  CAPSTAN_ASSIGN_OR_RETURN(const nlohmann::ordered_json requests,
                           ObjectOf("--request", asked));
  nlohmann::ordered_json resources = {{"requests", requests}};
  for (const auto& [name, value] : requests.items()) {
    if (name != "cpu") resources["limits"][name] = value;
  }
  return resources;
}

// The folder that a pattern of files is below; `path` if it is none.
std::string WithoutPattern(const std::string& path) {
  const size_t pattern = path.find_first_of("*?[");
  if (pattern == std::string::npos || PathExists(path)) return path;
  return path.substr(0, path.rfind('/', pattern));
}

// Where a pod finds a file of this machine's, which --shared must hold. Paths
// that aren't here, and patterns whose folder isn't, are taken for the pods'.
absl::StatusOr<std::string> InPod(const ScriptOptions& options,
                                  const std::string& field,
                                  const std::string& path) {
  const std::string shared =
      options.shared.empty() ? ""
                             : std::filesystem::path(FromCaller(options.shared))
                                   .lexically_normal()
                                   .string();
  absl::string_view rest = path;
  const bool below =
      !shared.empty() && absl::ConsumePrefix(&rest, shared) &&
      (rest.empty() || rest[0] == '/' || absl::EndsWith(shared, "/"));
  if (below) {
    absl::ConsumePrefix(&rest, "/");
    return absl::StrCat(kShared, rest.empty() ? "" : "/", rest);
  }
  if (!PathExists(WithoutPattern(path))) return path;
  return FieldError(
      field,
      absl::StrCat(path, " is a path of this machine, which pods don't see: ",
                   options.shared.empty()
                       ? "name this machine's folder that they will see as "
                         "/shared, with --shared"
                       : absl::StrCat("copy it into ", shared, " (--shared)"),
                   ", or the path in the pods, --set ", field, "=/shared/.."));
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

constexpr char kInImage[] = "/opt/capstan/bin/trainer";

// The rank's, or on Kubernetes the node's, command line. Restarts resume.
std::vector<std::string> CommandLine(const ScriptOptions& options,
                                     const RunConfig& config,
                                     const ConfigContext& context,
                                     const std::string& job) {
  if (options.launcher == "k8s") {
    return {kInImage,
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
  RunOptions run;
  for (const std::string& file : options.run.configs) {
    // Scripts run in any folder.
    run.configs.push_back(FindConfig(file, context).value_or(file));
  }
  run.plugin_path = AllFromCaller(options.run.plugin_path);
  const std::string output = config.output_dir().empty()
                                 ? "runs/" + config.name()
                                 : config.output_dir();
  // What the user has set comes later, and wins.
  run.overrides = {absl::StrCat("launch.processes=", options.processes),
                   "train.resume=AUTO"};
  run.overrides.insert(run.overrides.end(), options.run.overrides.begin(),
                       options.run.overrides.end());
  run.overrides.push_back("output_dir=" + FromCaller(output));
  std::vector<std::string> words = WordsOf(run);
  words.insert(words.begin(), self.string());
  return words;
}

// What only Kubernetes' file has.
struct Pods {
  std::vector<std::string> check;  // command line
  nlohmann::ordered_json resources;
  nlohmann::ordered_json node_selector;
  std::string config_text;
};

// Adds the plugins' folders, as pods see them, to the trainer's `words`.
absl::StatusOr<Pods> PodsOf(const ScriptOptions& options,
                            const LoadedConfig& loaded,
                            std::vector<std::string>* words) {
  Pods pods;
  pods.check = {kInImage, "check", "--config=/config/run.pbtxt", "--set",
                absl::StrCat("launch.processes=", options.processes)};
  for (const std::string& folder : AllFromCaller(options.run.plugin_path)) {
    CAPSTAN_ASSIGN_OR_RETURN(
        const std::string in_pod,
        InPod(options, "--plugin_path",
              std::filesystem::path(folder).lexically_normal().string()));
    words->push_back("--plugin_path=" + in_pod);
    pods.check.push_back(words->back());
  }
  CAPSTAN_ASSIGN_OR_RETURN(pods.resources, Resources(options));
  CAPSTAN_ASSIGN_OR_RETURN(pods.node_selector,
                           ObjectOf("--node_selector", options.node_selector));
  RunConfig config = loaded.config;
  config.clear_launch();  // the command line has it
  const auto in_pod = [&options](const std::string& field,
                                 const std::string& path) {
    return InPod(options, field, path);
  };
  CAPSTAN_RETURN_IF_ERROR(loaded.Locate(ChangePaths(in_pod, &config), ""));
  if (!config.output_dir().empty()) {
    if (!absl::StartsWith(config.output_dir(), kShared)) {
      return loaded.Locate(
          FieldError("output_dir",
                     absl::StrCat(config.output_dir(),
                                  " isn't shared by the pods: name a folder "
                                  "below --shared, or /shared/..")),
          "");
    }
    words->insert(words->end(), {"--set", "output_dir=" + config.output_dir()});
    config.clear_output_dir();
  }
  pods.config_text = PrintConfig(config);
  return pods;
}

}  // namespace

absl::StatusOr<std::string> ScriptText(const ScriptOptions& given) {
  ScriptOptions options = given;
  // "SLURM"
  absl::AsciiStrToLower(&options.launcher);
  const char* text = FileText(options.launcher + ".txt");
  if (text == nullptr) {
    std::vector<std::string> known;
    for (const EmbeddedFile* file = kScriptFiles; file->path != nullptr;
         ++file) {
      absl::string_view name = file->path;
      if (absl::ConsumeSuffix(&name, ".txt")) known.emplace_back(name);
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
  if (options.run.print_config) return PrintConfig(config);
  if (config.launch().nodes() != 0 || !config.launch().rendezvous().empty()) {
    return absl::InvalidArgumentError(
        "launch.nodes and launch.rendezvous are the script's to set: clear "
        "them, and give --nodes");
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
  std::vector<std::string> words = CommandLine(all, config, context, job);
  Pods pods;
  if (options.launcher == "k8s") {
    CAPSTAN_ASSIGN_OR_RETURN(pods, PodsOf(all, loaded, &words));
  }
  const std::string whole =
      absl::StrReplaceAll(text, {{"@MPIRUN@", FileText("mpirun.part")}});
  return absl::StrReplaceAll(
      WithConditions(whole, all),
      {{"@NAME@", job},
       // PBS takes no longer ones.
       {"@PBS_NAME@", job.substr(0, 15)},
       {"@NODES@", absl::StrCat(all.nodes)},
       {"@PROCESSES@", absl::StrCat(all.processes)},
       {"@RANKS@", absl::StrCat(all.nodes * all.processes)},
       {"@RESTARTS@", absl::StrCat(3 * all.nodes)},
       {"@GPUS_PYTHON@", all.gpus ? "True" : "False"},
       {"@IMAGE@", all.image},
       {"@TOKEN@", RandomToken()},
       {"@COMMAND@", ShellText(words)},
       {"@COMMAND_LIST@", JsonText(nlohmann::json(words))},
       {"@CHECK_LIST@", JsonText(nlohmann::json(pods.check))},
       {"@RESOURCES@", pods.resources.dump()},
       {"@NODE_SELECTOR@", pods.node_selector.dump()},
       {"@CONFIG_TEXT@", Indented(pods.config_text, 4)}});
}

namespace {

absl::StatusOr<int> PrintScript(const ScriptOptions& options) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text, ScriptText(options));
  std::cout << text;
  return 0;
}

void AddFlags(Flags& flags, ScriptOptions* options) {
  flags
      .Add("--for", &options->launcher,
           "The launcher: slurm, pbs, lsf, k8s, mpi, torchrun or ray")
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
  flags
      .Add("--shared", &options->shared,
           "k8s: this machine's folder that the pods see as /shared; data, "
           "models and plugins lie below it")
      .Type("FOLDER");
  flags
      .Add("--request", &options->requests,
           "k8s: what a pod asks for, cpu=16, memory=64Gi")
      .Type("NAME=QUANTITY")
      .OneEach();
  flags
      .Add("--node_selector", &options->node_selector,
           "k8s: a label of the nodes to take")
      .Type("LABEL=VALUE")
      .OneEach();
  flags
      .Add("--rdma", &options->rdma,
           "k8s: the RDMA device that a pod asks for, rdma/hca=1")
      .Type("NAME=COUNT");
  AddRunOptions(flags, &options->run);
}

const RegisterFunction<ScriptOptions> script("script", AddFlags, PrintScript);

}  // namespace
}  // namespace capstan
