// SPDX-License-Identifier: Apache-2.0
//
// `trainer init`: from data to a config that trains on it. What can't be known
// is asked, or said by flags.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/files.h"
#include "base/status.h"
#include "desk/init/init.h"
#include "desk/init/undo.h"
#include "desk/script/script_command.h"
#include "trainer/commands/command.h"
#include "trainer/metrics/console.h"
#include "trainer/session/output_folder.h"

namespace capstan::init {
namespace {

// How the trainer is called: the words before "init".
std::vector<std::string> Trainer() {
  std::vector<std::string> words = ThisCall().words;
  words.erase(std::find(words.begin(), words.end(), "init"), words.end());
  if (words.empty()) words = {"trainer"};
  return words;
}

std::string CommandText(const std::vector<std::string>& words) {
  std::vector<std::string> all = Trainer();
  all.insert(all.end(), words.begin(), words.end());
  return ShellText(all);
}

int Nothing() {
  std::cout << "Without data there is nothing to configure. These bring their "
               "own, and train in\nminutes on two cores:\n";
  for (const auto& [config, what] :
       {std::pair("run_distributed.pbtxt", "a small Llama learns to write C++"),
        std::pair("sft_quickstart.pbtxt", "a model learns small talk"),
        std::pair("dpo_quickstart.pbtxt", "it learns from pairs of answers"),
        std::pair("ad_darkroom_quickstart.pbtxt",
                  "it learns how agents learn")}) {
    std::cout << absl::StrFormat("  %-30s %s\n", config, what);
  }
  std::cout << "Next:\n  " << CommandText({"--config=run_distributed.pbtxt"})
            << std::endl;
  return 0;
}

int OnlyAModel(const std::string& model) {
  std::cout << "A model learns from data. --data=PATH may be:\n"
               "  a text, or a folder of texts: it goes on learning to write\n"
               "  chats, questions with answers, instructions (.jsonl, .json, "
               ".csv, .parquet):\n    it learns to answer "
               "(docs/chat_data.md lists the columns)\n"
               "  pairs of a chosen and a rejected answer, or answers with "
               "labels:\n    it learns what is preferred\nNext:\n  "
            << CommandText({"init", "--model=" + model, "--data=PATH"})
            << std::endl;
  return 0;
}

// The texts of a folder, one after the other, in a file that a run reads: at
// init.joining, as nothing that exists changes before the recipe is made.
absl::Status JoinTexts(const Init& init) {
  if (init.joined.empty()) return absl::OkStatus();
  CAPSTAN_RETURN_IF_ERROR(
      MakeFolder(std::filesystem::path(init.joined).parent_path().string()));
  CAPSTAN_ASSIGN_OR_RETURN(
      OutputFile out,
      OutputFile::Open(init.joining, OutputFile::Start::kEmpty));
  for (const std::string& path : init.look.files) {
    CAPSTAN_ASSIGN_OR_RETURN(const auto file,
                             MappedFile::Open(path, {/*in_order=*/true}));
    CAPSTAN_RETURN_IF_ERROR(out.Append(file->bytes()));
    CAPSTAN_RETURN_IF_ERROR(out.Append("\n"));
    CAPSTAN_RETURN_IF_ERROR(file->Check());
  }
  return out.Close();
}

// Writes the config, and a cluster's script; returns the next command's words.
absl::StatusOr<std::vector<std::string>> Write(Init* init) {
  Recipe& recipe = init->recipe;
  const std::filesystem::path output = init->output;
  const std::string base =
      std::filesystem::path(output).replace_extension().string();
  if (IsPreference(recipe.kind) && !recipe.lora) {
    recipe.reference = base + ".reference";
  }
  if (!init->joined.empty()) recipe.data = init->joined;
  CAPSTAN_RETURN_IF_ERROR(MakeFolder(output.parent_path().string()));
  CAPSTAN_RETURN_IF_ERROR(ReplaceFile(
      init->output,
      ConfigText(recipe, output.parent_path().string(), "trainer init")));
  init->Tell("wrote", Typed(init->output));
  if (!init->joined.empty()) {
    if (rename(init->joining.c_str(), init->joined.c_str()) != 0) {
      return WriteError(init->joined, errno);
    }
    init->Tell("", absl::StrCat(Typed(init->joined), ", the texts in one"));
  }
  std::vector<std::string> next = Trainer();
  if (!recipe.reference.empty()) {
    next.insert(next.end(), {"dpo-reference", "--config=" + Typed(init->output),
                             "--model=" + init->options.model,
                             "--data=" + Typed(init->look.path)});
    return next;
  }
  next.push_back("--config=" + Typed(init->output));
  if (init->target.here()) return next;
  ScriptOptions script;
  script.launcher = init->target.launcher;
  script.nodes = init->target.nodes;
  script.processes = init->target.processes;
  script.gpus = true;
  script.run.configs = {init->output};
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text, ScriptText(script));
  const std::string path = absl::StrCat(base, ".", script.launcher);
  CAPSTAN_RETURN_IF_ERROR(ReplaceFile(path, text));
  init->Tell("", absl::StrCat(Typed(path), ", the job's script"));
  const char* const submit = script.launcher == "slurm" ? "sbatch"
                             : script.launcher == "pbs" ? "qsub"
                                                        : "bsub <";
  return std::vector<std::string>{submit, Typed(path)};
}

// The command by which the trained model shows what it has learned.
std::string AnswerCommand(const Init& init) {
  const Recipe& recipe = init.recipe;
  // A cluster's script has all nodes write into one folder.
  const std::string model = absl::StrCat(
      "--model=runs/", std::filesystem::path(init.output).stem().string(),
      init.target.here() ? "/latest" : "");
  if (recipe.kind == DataKind::kHistories) return CommandText({"eval", model});
  if (recipe.kind != DataKind::kText && !recipe.plain_texts) {
    return CommandText({"chat", model});
  }
  return CommandText(
      {"generate", model,
       "--prompt=" + (recipe.opening.empty() ? "The" : recipe.opening)});
}

absl::StatusOr<int> Make(const InitOptions& options) {
  Init init{options, Asker(STDIN_FILENO, STDOUT_FILENO, options.yes)};
  CAPSTAN_ASSIGN_OR_RETURN(const bool any, AskForData(&init));
  if (!any) return Nothing();
  if (init.look.kind == DataKind::kModel) {
    return OnlyAModel(init.options.model.empty() ? init.options.data
                                                 : init.options.model);
  }
  CAPSTAN_RETURN_IF_ERROR(AskTheRest(&init));
  const Undo remove_joining([path = init.joining] { unlink(path.c_str()); });
  CAPSTAN_RETURN_IF_ERROR(JoinTexts(init));
  if (Console(STDOUT_FILENO).terminal()) {
    std::cout << "Reading the data, and trying a few steps .." << std::endl;
  }
  CAPSTAN_RETURN_IF_ERROR(MakeRecipe(&init));
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<std::string> next, Write(&init));
  std::cout << PrintableText(TableText(init.told));
  if (!init.recipe.reference.empty()) {
    std::cout << "Once the next command has written the reference, train:\n  "
              << CommandText({"--config=" + Typed(init.output)}) << "\n";
  }
  std::cout << "Once it is trained, it shows what it has learned:\n  "
            << AnswerCommand(init) << "\nNext:\n  " << ShellText(next)
            << std::endl;
  return 0;
}

// "" if `text` is one of the words.
std::string OneOf(const std::string& text,
                  const std::vector<std::string>& words) {
  if (std::find(words.begin(), words.end(), text) != words.end()) return "";
  return absl::StrCat("is ", absl::StrJoin(words, " or "), ", not ", text);
}

void AddFlags(Flags& flags, InitOptions* options) {
  flags
      .Add("--data", &options->data,
           "What to learn from: a text or a folder of texts, rows (.jsonl, "
           ".json, .csv, .tsv, .parquet), learning histories (.hdf5)")
      .Type("PATH");
  flags
      .Add("--model", &options->model,
           "The model to start from, hf:OWNER/NAME or a Hugging Face folder; "
           "default for texts: a new one")
      .Type("FOLDER");
  flags
      .Add("--output", &options->output,
           "The config to write; default: named like the data")
      .Type("FILE");
  flags
      .Add("--where", &options->where,
           "here, or the cluster's launcher: slurm, pbs or lsf; default: here")
      .Type("LAUNCHER")
      .Check([](const std::string& text) {
        return OneOf(text, {"here", "slurm", "pbs", "lsf"});
      });
  flags.Add("--nodes", &options->nodes, "Of the cluster; default: 2")
      .Positive();
  flags.Add("--gpus", &options->gpus, "Of each node; default: 8").Positive();
  flags.Add("--gpu_memory", &options->gpu_memory, "Of each GPU; default: 80GiB")
      .Type("BYTES");
  flags
      .Add("--time", &options->time,
           "How long it may train: 10m, 1h30m; default: 10m on CPUs, 1h on "
           "GPUs, 8h on a cluster")
      .Type("TIME");
  flags
      .Add("--prefer", &options->prefer,
           "quality: all weights are trained if they fit; memory: an adapter "
           "(LoRA); default: quality, memory for pairs and labels")
      .Type("WHAT")
      .Check([](const std::string& text) {
        return OneOf(text, {"quality", "memory"});
      });
  flags
      .Add("--bad_rows", &options->bad_rows,
           "Of rows that can't be read: stop, or skip, which leaves them out; "
           "default: stop")
      .Type("WHAT")
      .Check([](const std::string& text) {
        return OneOf(text, {"stop", "skip"});
      });
  flags.Add("--yes", &options->yes, "Ask nothing: take what is proposed");
  flags.Add("--force", &options->force, "Replace files that exist");
}

const RegisterFunction<InitOptions> init("init", AddFlags, Make);

}  // namespace
}  // namespace capstan::init