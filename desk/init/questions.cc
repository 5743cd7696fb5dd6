// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/error_code.h"
#include "base/files.h"
#include "base/gpus.h"
#include "base/machine.h"
#include "base/status.h"
#include "desk/init/init.h"
#include "host/config/hub_path.h"
#include "inference/load/generator.h"
#include "trainer/commands/command.h"
#include "trainer/commands/prepare.h"
#include "trainer/memory/memory_plan.h"
#include "trainer/metrics/console.h"
#include "trainer/session/run_folders.h"

namespace capstan::init {
namespace {

// A model's folder, given by a path, that of a run, or as hf:OWNER/NAME.
absl::StatusOr<std::string> ModelPath(const std::string& model) {
  const bool hub = IsHubPath(model);
  std::string folder = ModelFolder(Normal(model), RunFoldersHere());
  if (hub) {
    CAPSTAN_ASSIGN_OR_RETURN(folder, ResolveHubPath(model, HubKind::kModel));
  }
  if (IsModelFolder(folder)) return folder;
  for (const char* weights :
       {"/pytorch_model.bin", "/pytorch_model.bin.index.json"}) {
    if (!PathExists(folder + weights)) continue;
    return WithCode(
        absl::InvalidArgumentError(absl::StrCat(
            model, " has weights in PyTorch's format: `trainer convert ",
            Typed(folder), " --output=", Typed(folder),
            "-safetensors` makes a folder to name instead")),
        "model/folder");
  }
  return WithCode(
      absl::NotFoundError(absl::StrCat(
          model,
          " is no model's folder, which has config.json and model.safetensors; "
          "`hf "
          "download HuggingFaceTB/SmolLM2-135M-Instruct --local-dir=SmolLM2` "
          "fetches a small one")),
      "model/folder");
}

std::string ProblemOf(const absl::Status& status) {
  return status.ok() ? "" : std::string(status.message());
}

absl::Status AskForModel(Init* init) {
  std::string& model = init->options.model;
  const DataKind kind = init->look.kind;
  const bool rows = kind == DataKind::kRows || IsPreference(kind);
  if (model.empty() && kind != DataKind::kHistories) {
    model = init->asker.Line(
        rows ? "Folder of the model to start from, or hf:OWNER/NAME"
             : "Folder of a model to start from (a new, small one: Enter)",
        "", [](const std::string& path) {
          return ProblemOf(ModelPath(path).status());
        });
  }
  if (model.empty() && rows) {
    return absl::InvalidArgumentError(absl::StrCat(
        init->options.data, " has ",
        kind == DataKind::kPairs    ? "pairs of answers"
        : kind == DataKind::kLabels ? "answers with labels"
                                    : "rows",
        ", which a model that can write learns from: name one, "
        "--model=FOLDER or --model=hf:OWNER/NAME (`hf download "
        "HuggingFaceTB/SmolLM2-135M-Instruct --local-dir=SmolLM2` fetches a "
        "small one)"));
  }
  if (model.empty()) return absl::OkStatus();
  if (kind == DataKind::kHistories) {
    return FieldError("--model",
                      "learning histories train a new model: leave it out");
  }
  CAPSTAN_ASSIGN_OR_RETURN(init->model, ModelPath(model));
  return absl::OkStatus();
}

absl::Status AskWhere(Init* init) {
  InitOptions& options = init->options;
  Target& target = init->target;
  CAPSTAN_ASSIGN_OR_RETURN(const int gpus, GpusOfRun());
  if (options.where.empty()) {
    const std::string machine = absl::StrCat(
        gpus > 0 ? absl::StrCat(gpus, " x ", Gpus().gpus[0].name)
                 : absl::StrCat(AvailableCores(), " cores, no GPU"),
        ", ", ShortBytes(AvailableHostMemory()), " of memory");
    options.where =
        init->asker.Choose("Where is it to train?",
                           {{"here", machine},
                            {"slurm", "a cluster: a script for sbatch"},
                            {"pbs", "a cluster: a script for qsub"},
                            {"lsf", "a cluster: a script for bsub"}},
                           0);
  }
  if (options.where == "here") {
    if (options.nodes > 0 || options.gpus > 0 || !options.gpu_memory.empty()) {
      return FieldError("--where",
                        "is needed to say whose --nodes, --gpus and "
                        "--gpu_memory these are: slurm, pbs or lsf");
    }
    CAPSTAN_ASSIGN_OR_RETURN(const CommandHost::Ranks ranks, RanksOfRun());
    target.processes = ranks.count;
    target.gpu_memory = gpus > 0 ? FreeGpuMemory() : 0;
    return absl::OkStatus();
  }
  target.launcher = options.where;
  const auto number = [&](const char* question, int64_t given,
                          const char* proposed) {
    if (given > 0) return given;
    int64_t value = 0;
    const std::string text =
        init->asker.Line(question, proposed, [&](const std::string& line) {
          return absl::SimpleAtoi(line, &value) && value > 0 && value < 100000
                     ? ""
                     : "a number, please";
        });
    return absl::SimpleAtoi(text, &value) ? value : 1;
  };
  target.nodes = number("How many nodes?", options.nodes, "2");
  target.processes =
      static_cast<int>(number("How many GPUs has each?", options.gpus, "8"));
  if (options.gpu_memory.empty()) {
    options.gpu_memory = init->asker.Line(
        "How much memory has a GPU?", "80GiB", [](const std::string& line) {
          return ProblemOf(BytesFromText(line).status());
        });
  }
  CAPSTAN_ASSIGN_OR_RETURN(target.gpu_memory,
                           BytesFromText(options.gpu_memory));
  return absl::OkStatus();
}

absl::StatusOr<double> SecondsOf(const std::string& text) {
  absl::Duration time;
  if (!absl::ParseDuration(text, &time) || time < absl::Seconds(10) ||
      time > absl::Hours(10000)) {
    return FieldError("--time", absl::StrCat("is a time from 10s to 10000h, "
                                             "such as 10m or 1h30m, and not ",
                                             text));
  }
  return absl::ToDoubleSeconds(time);
}

absl::Status AskHowLong(Init* init) {
  InitOptions& options = init->options;
  if (options.time.empty()) {
    options.time =
        init->asker.Line("How long may it train (10m, 1h30m)?",
                         !init->target.here()     ? "8h"
                         : init->target.on_gpus() ? "1h"
                                                  : "10m",
                         [](const std::string& line) {
                           return ProblemOf(SecondsOf(line).status());
                         });
  }
  CAPSTAN_ASSIGN_OR_RETURN(init->seconds, SecondsOf(options.time));
  if (init->model.empty()) return absl::OkStatus();
  // What is proposed may wait for FineTune, which has read packed rows.
  if (options.prefer.empty() && !options.yes) {
    options.prefer = init->asker.Choose(
        "What comes first?",
        {{"quality", "all weights are trained if memory allows it"},
         {"memory", "an adapter (LoRA) is trained beside frozen weights"}},
        // Preferences need no file of references then.
        IsPreference(init->look.kind) ? 1 : 0);
  }
  return absl::OkStatus();
}

// Nothing that exists is overwritten without --force, and the data and the
// model never.
absl::Status CheckFree(const Init& init, const std::string& path) {
  if (IsFolder(path)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is a folder: name a file in it"));
  }
  for (const std::string& file : init.look.files) {
    std::error_code error;  // one of them doesn't exist
    if (std::filesystem::equivalent(path, file, error)) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " is your data: name another --output"));
    }
  }
  if (!PathExists(path)) return absl::OkStatus();
  std::error_code error;  // the model has no folder
  if (std::filesystem::equivalent(std::filesystem::path(path).parent_path(),
                                  init.model, error)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is your model's: name another --output"));
  }
  if (init.options.force) return absl::OkStatus();
  return WithCode(
      absl::AlreadyExistsError(absl::StrCat(
          path,
          " exists: name another --output, or say --force to replace it")),
      "path/exists");
}

absl::Status AskForOutput(Init* init) {
  InitOptions& options = init->options;
  const std::string stem =
      std::filesystem::path(init->look.path).stem().string();
  if (options.output.empty()) {
    options.output =
        init->asker.Line("Which file is to become the config?", stem + ".pbtxt",
                         [&](const std::string& path) {
                           return ProblemOf(CheckFree(*init, Normal(path)));
                         });
  }
  init->output = Normal(options.output);
  CAPSTAN_RETURN_IF_ERROR(CheckFree(*init, init->output));
  const std::string base =
      std::filesystem::path(init->output).replace_extension().string();
  if (init->look.kind == DataKind::kText && IsFolder(init->look.path)) {
    init->joined = base + kJoinedEnding;
    CAPSTAN_RETURN_IF_ERROR(CheckFree(*init, init->joined));
    init->joining = HiddenSibling(init->joined, absl::StrCat(getpid()));
  }
  if (init->target.here()) return absl::OkStatus();
  const std::string script = absl::StrCat(base, ".", init->target.launcher);
  if (script == init->output) {
    return FieldError("--output",
                      "is what the job's script is named: give the config "
                      "another ending, such as .pbtxt");
  }
  return CheckFree(*init, script);
}

}  // namespace

std::string Normal(const std::string& path) {
  std::string normal =
      std::filesystem::path(FromCaller(path)).lexically_normal().string();
  if (normal.size() > 1 && normal.back() == '/') normal.pop_back();
  return normal;
}

std::string Typed(const std::string& path) {
  const std::string here = FromCaller("");
  const std::string relative =
      std::filesystem::path(path).lexically_relative(here).string();
  return relative.empty() || absl::StartsWith(relative, "..") ? path : relative;
}

absl::StatusOr<bool> AskForData(Init* init) {
  InitOptions& options = init->options;
  const auto problem = [](const std::string& path) {
    return ProblemOf(LookAt(Normal(path)).status());
  };
  if (options.data.empty()) {
    options.data = init->asker.Line(
        "A config for your data: a text or a folder of texts, chats (.jsonl, "
        ".json,\n.csv, .parquet), pairs of answers, or learning histories "
        "(.hdf5).\nPath of your data, or of a model (nothing yet: Enter)",
        "", problem);
  }
  if (options.data.empty() && options.model.empty()) return false;
  if (options.data.empty()) {
    init->look.kind = DataKind::kModel;
    return true;
  }
  CAPSTAN_ASSIGN_OR_RETURN(init->look, LookAt(Normal(options.data)));
  return true;
}

absl::Status AskAboutBadRows(const absl::Status& why, int64_t samples,
                             Init* init) {
  std::string& answer = init->options.bad_rows;
  if (answer.empty()) {
    answer = init->asker.Choose(
        absl::StrCat("Some rows can't be read: ", why.message()),
        {{"stop", "to mend them first"},
         {"skip",
          absl::StrCat("leave them out: ", WithCommas(samples), " are good")}},
        0);
  }
  if (answer == "skip") {
    init->Tell("bad rows", absl::StrCat("left out, the first of them: ",
                                        PrintableText(why.message())));
    return absl::OkStatus();
  }
  return WithMessage(why, absl::StrCat(why.message(),
                                       "; --bad_rows=skip leaves out what "
                                       "can't be read, and keeps ",
                                       WithCommas(samples), " rows"));
}

absl::Status AskTheRest(Init* init) {
  CAPSTAN_RETURN_IF_ERROR(AskForModel(init));
  CAPSTAN_RETURN_IF_ERROR(AskWhere(init));
  CAPSTAN_RETURN_IF_ERROR(AskHowLong(init));
  return AskForOutput(init);
}

}  // namespace capstan::init
