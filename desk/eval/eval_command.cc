// SPDX-License-Identifier: Apache-2.0
//
// eval: a model's loss on data and its objective's measurements, without
// training, what it answers, and tasks (eval_tasks.h). Writes only to --output.
// On CPUs in float32, with a model that is loaded once and shared by the forked
// ranks; on GPUs in the model's dtype, bound by each rank.
#include <ATen/Parallel.h>
#include <google/protobuf/descriptor.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/files.h"
#include "base/gpus.h"
#include "base/json.h"
#include "base/machine.h"
#include "base/npy.h"
#include "base/status.h"
#include "cluster/comm/create.h"
#include "cluster/launch/launcher.h"
#include "cluster/watch/ledger.h"
#include "cluster/watch/watchdog.h"
#include "desk/eval/eval_tasks.h"
#include "desk/generate/model_flags.h"
#include "host/config/flag_overrides.h"
#include "host/config/hub_path.h"
#include "host/config/load_config.h"
#include "host/storage/storage.h"
#include "inference/evaluate/asking.h"
#include "inference/evaluate/run_task.h"
#include "inference/load/generator.h"
#include "inference/load/run_tokenizer.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/lib/field_check.h"
#include "plugins/sdk/options.pb.h"
#include "trainer/commands/command.h"
#include "trainer/metrics/console.h"
#include "trainer/metrics/curve.h"
#include "trainer/metrics/progress_bar.h"
#include "trainer/metrics/reporter.h"
#include "trainer/session/evaluate.h"
#include "trainer/session/run_folders.h"
#include "trainer/session/session.h"
#include "trainer/session/watch.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

// Named numbers in display order.
using Numbers = std::vector<std::pair<std::string, double>>;

// The result of an evaluation.
struct Outcome {
  int64_t samples = 0;
  double seconds = 0.0;
  EvaluationResult result;
  Numbers numbers;  // loss, derived numbers, the objective's, of answers
  std::vector<std::string> answers;  // a JSON object each
};

// The overrides that --data implies, from the reader's field options.
absl::StatusOr<FlagOverrides> DataOverrides(
    const EvalOptions& options, const google::protobuf::Any& reader) {
  FlagOverrides overrides;
  if (options.data.empty()) return overrides;
  // Of several files, of the Hub or of a store, which the reader or the config
  // finds.
  const bool elsewhere = IsHubPath(options.data) || IsAddress(options.data);
  const bool is_name = elsewhere || options.data.find('*') != std::string::npos;
  const std::string data = elsewhere ? options.data : FromCaller(options.data);
  if (!is_name && !PathExists(data)) {
    return absl::NotFoundError(
        absl::StrCat("--data=", options.data, ": there is no such file"));
  }
  const std::string typed = absl::StrCat("--data=", options.data);
  CAPSTAN_ASSIGN_OR_RETURN(const auto config, Unpack(reader));
  const google::protobuf::Descriptor& type = *config->GetDescriptor();
  const google::protobuf::FieldDescriptor* takes_path = nullptr;
  for (int i = 0; i < type.field_count(); ++i) {
    const google::protobuf::FieldDescriptor& field = *type.field(i);
    const DataRole::Value role = field.options().GetExtension(data_role);
    if (role == DataRole::CLEARED) {
      overrides.emplace_back(absl::StrCat("eval_data.", field.name(), "="),
                             typed);
    } else if ((role == DataRole::FILE_PATH && takes_path == nullptr) ||
               (role == DataRole::FOLDER_PATH && IsFolder(data))) {
      takes_path = &field;
    }
  }
  if (takes_path == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("--data: ", TypeOf(reader),
                     " has no field for a path: say what it reads with --set "
                     "eval_data.FIELD=VALUE"));
  }
  overrides.insert(
      overrides.begin(),
      {absl::StrCat("eval_data.", takes_path->name(), "=", data), typed});
  return overrides;
}

// The path of the field that is called so, by its name or its JSON name, in a
// message of this type; "" if there is none.
std::string PathOfField(const google::protobuf::Descriptor& type,
                        const std::string& name, bool* is_list) {
  for (int i = 0; i < type.field_count(); ++i) {
    const google::protobuf::FieldDescriptor& field = *type.field(i);
    const bool is_message = field.message_type() != nullptr;
    if (!is_message && (field.name() == name || field.json_name() == name)) {
      *is_list = field.is_repeated();
      return field.name();
    }
    if (!is_message || field.is_repeated() || field.message_type() == &type) {
      continue;
    }
    const std::string inner = PathOfField(*field.message_type(), name, is_list);
    if (!inner.empty()) return absl::StrCat(field.name(), ".", inner);
  }
  return "";
}

// The overrides of flags that are fields of the objective's config:
// --goal_idx=3, --goal_idx 3 14.
absl::StatusOr<FlagOverrides> ObjectiveOverrides(
    const EvalOptions& options, const google::protobuf::Any& objective) {
  FlagOverrides overrides;
  const std::vector<std::string>& words = options.rest;
  for (size_t i = 0; i < words.size();) {
    const size_t equals = words[i].find('=');
    const std::string flag = words[i].substr(0, equals);
    std::vector<std::string> values;
    if (equals != std::string::npos) values = {words[i].substr(equals + 1)};
    for (++i; i < words.size() && !absl::StartsWith(words[i], "--"); ++i) {
      values.push_back(words[i]);
    }
    std::string path;
    bool is_list = false;
    if (absl::StartsWith(flag, "--") && !objective.type_url().empty()) {
      CAPSTAN_ASSIGN_OR_RETURN(const auto config, Unpack(objective));
      path = PathOfField(*config->GetDescriptor(), flag.substr(2), &is_list);
    }
    if (path.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(flag,
                       " is neither a flag (trainer eval --help) nor a "
                       "field of the model's objective, ",
                       TypeOf(objective)));
    }
    if (values.empty() || (values.size() > 1 && !is_list)) {
      return FieldError(flag, is_list ? "takes values" : "takes one value");
    }
    const std::string value = absl::StrJoin(values, ",");
    overrides.emplace_back(
        absl::StrCat("objective.", path, "=", is_list ? "[" : "", value,
                     is_list ? "]" : ""),
        absl::StrCat(flag, "=", value));
  }
  return overrides;
}

// A model and what to evaluate it on.
struct Loaded {
  Generator generator;
  std::unique_ptr<DatasetReader> data;
};

// With the model's tokenizer.
absl::StatusOr<std::unique_ptr<DatasetReader>> OpenData(
    const EvalOptions& options, const Generator& generator,
    const EvaluationSource& source, bool is_training) {
  const RunConfig& config = generator.loaded.config;
  const RunTokenizer tokenizer(config.replace_tokenizer()
                                   ? std::vector<std::string>()
                                   : source.tokenizer_folders);
  absl::StatusOr<std::unique_ptr<DatasetReader>> reader =
      OpenReader(generator.loaded, "eval_data", config.eval_data(), tokenizer,
                 *generator.host);
  if (!reader.ok() || !is_training) return reader;
  absl::StatusOr<std::unique_ptr<DatasetReader>> held_back =
      (*reader)->Validation();
  CAPSTAN_RETURN_IF_ERROR(
      generator.loaded.Locate(held_back.status(), "eval_data"));
  if (*held_back != nullptr) return held_back;
  if (!options.data.empty()) return reader;
  return absl::InvalidArgumentError(
      "the run that made this model holds nothing back from training: say what "
      "to evaluate on with --data=FILE");
}

// Sets `flags` as far as they are known.
absl::StatusOr<Loaded> Load(const EvalOptions& options, FlagOverrides* flags) {
  auto host = std::make_unique<PluginHost>(AllFromCaller(options.plugin_path));
  const ConfigContext context = DefaultConfigContext(host.get());
  absl::optional<LoadedConfig> run;
  if (!options.configs.empty()) {
    CAPSTAN_ASSIGN_OR_RETURN(run, LoadConfig(options.configs, {}, context));
  }
  CAPSTAN_ASSIGN_OR_RETURN(
      const EvaluationSource source,
      FindToEvaluate(options.model, options.adapter,
                     run.has_value() ? &run->config : nullptr, context,
                     RunFoldersHere()));
  CAPSTAN_ASSIGN_OR_RETURN(
      const LoadedConfig config,
      ParseConfig(source.config, source.folder, context, options.overrides));
  if (!config.config.has_eval_data()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--model=", options.model,
        " doesn't say what it was trained on: name a reader with --set "
        "eval_data=PACKAGE (`trainer plugins` lists them) and a file with "
        "--data, or a run's config with --config"));
  }
  CAPSTAN_ASSIGN_OR_RETURN(*flags,
                           DataOverrides(options, config.config.eval_data()));
  const auto is_reader = [](const std::string& override) {
    return absl::StartsWith(override, "eval_data=");
  };
  const bool other_reader = std::any_of(options.overrides.begin(),
                                        options.overrides.end(), is_reader);
  CAPSTAN_ASSIGN_OR_RETURN(
      const FlagOverrides of_objective,
      ObjectiveOverrides(options, config.config.objective()));
  flags->insert(flags->end(), of_objective.begin(), of_objective.end());
  std::vector<std::string> overrides = options.overrides;
  for (const auto& [set, typed] : *flags) overrides.push_back(set);
  CAPSTAN_ASSIGN_OR_RETURN(WeightPlace place, PlaceHere(options.weights));
  // Activations are float32 there in any case.
  if (!place.gpu) place.form = WeightForm::kFloat32;
  Loaded loaded;
  CAPSTAN_ASSIGN_OR_RETURN(loaded.generator,
                           LoadToEvaluate(source, std::move(host),
                                          RunFoldersHere(), overrides, place));
  if (!source.note.empty()) {
    std::cerr << "note: " << PrintableText(source.note) << "\n";
  }
  CAPSTAN_ASSIGN_OR_RETURN(loaded.data,
                           OpenData(options, loaded.generator, source,
                                    source.data_is_training && !other_reader));
  const Generator& generator = loaded.generator;
  // A field that it names is its own.
  const absl::Status fits =
      generator.objective->Check(*generator.model, *loaded.data);
  CAPSTAN_RETURN_IF_ERROR(generator.loaded.Locate(
      fits, FieldOf(fits).has_value() ? "objective" : "eval_data"));
  return loaded;
}

// Errors name flags as they were typed.
absl::StatusOr<Loaded> LoadAsTyped(const EvalOptions& options) {
  FlagOverrides flags;
  absl::StatusOr<Loaded> loaded = Load(options, &flags);
  if (loaded.ok()) return loaded;
  return AsTyped(loaded.status(), flags);
}

int64_t BatchSize(const EvalOptions& options, const RunConfig& config) {
  if (options.batch_size > 0) return options.batch_size;
  const int64_t of_run = config.batch().micro_batch_size();
  return of_run > 0 && of_run != Batching::AUTO ? of_run : kDefaultEvalBatch;
}

// Lets the model answer samples of the data, and adds what that is worth.
absl::Status Answer(const EvalOptions& options, const Loaded& loaded,
                    const std::vector<evaluate::Request>& requests,
                    ProcessGroup& group, WorkBar& bar, Outcome* outcome) {
  const Generator& generator = loaded.generator;
  PlainRunner runner;
  evaluate::Answerer answerer{*generator.model, *generator.objective, runner,
                              *loaded.data->tokenizer(), group};
  answerer.seed = generator.loaded.config.train().seed();
  answerer.batch_size = BatchSize(options, generator.loaded.config);
  if (group.rank() == 0) {
    answerer.progress = [&bar](double done) { bar.Show(done, "answering"); };
  }
  CAPSTAN_ASSIGN_OR_RETURN(
      evaluate::TaskResult result,
      evaluate::RunTask(evaluate::AnswerTask(options.max_new_tokens), requests,
                        answerer));
  outcome->numbers.emplace_back("answers", result.requests);
  for (const evaluate::TaskNumber& number : result.numbers) {
    outcome->numbers.emplace_back(number.name, number.value);
    if (number.standard_error.has_value()) {
      outcome->numbers.emplace_back(number.name + "_stderr",
                                    *number.standard_error);
    }
  }
  outcome->answers = std::move(result.samples);
  return absl::OkStatus();
}

// One rank's part; all ranks get the same outcome.
absl::Status Evaluate(const EvalOptions& options, const Loaded& loaded,
                      ProcessGroup& group, WorkBar& bar, Outcome* outcome) {
  const Generator& generator = loaded.generator;
  const RunConfig& config = generator.loaded.config;
  PlainRunner runner;
  EvaluationRequest request;
  request.model = generator.model.get();
  request.objective = generator.objective.get();
  request.data = loaded.data.get();
  request.group = &group;
  request.mesh.data = request.group->size();
  request.runner = &runner;
  request.micro_batch_size = BatchSize(options, config);
  request.max_batches = options.max_batches;
  request.seed = config.train().seed();
  request.last = true;
  request.thorough = !options.loss_only;
  if (group.rank() == 0) {
    request.progress = [&bar](double done) { bar.Show(done, "loss"); };
    request.measuring = [&bar](double done) { bar.Show(done, "measuring"); };
  }
  CAPSTAN_ASSIGN_OR_RETURN(outcome->result, capstan::Evaluate(request));
  outcome->samples = loaded.data->size();
  if (options.max_batches > 0) {
    outcome->samples = std::min(outcome->samples,
                                options.max_batches * request.micro_batch_size);
  }
  const EvaluationResult& result = outcome->result;
  if (result.count > 0) {
    outcome->numbers.emplace_back(kEvalLoss, result.loss_sum / result.count);
  }
  Numbers tagged = result.tagged;
  if (result.measurement.has_value()) {
    tagged.insert(tagged.end(), result.measurement->scalars.begin(),
                  result.measurement->scalars.end());
  }
  for (const auto& [tag, value] : tagged) {
    outcome->numbers.emplace_back(MetricName(tag), value);
  }
  return absl::OkStatus();
}

std::string Json(const EvalOptions& options, const Generator& generator,
                 const Outcome& outcome) {
  nlohmann::ordered_json json;
  json["model"] = options.model;
  json["data"] = options.data.empty() ? nlohmann::ordered_json(nullptr)
                                      : nlohmann::ordered_json(options.data);
  json["arithmetic"] = generator.arithmetic;
  json["samples"] = outcome.samples;
  json["targets"] = static_cast<int64_t>(outcome.result.count);
  json["seconds"] = outcome.seconds;
  for (const auto& [name, value] : outcome.numbers) json[name] = value;
  return JsonText(json, 2) + "\n";
}

std::string Table(const EvalOptions& options, const Generator& generator,
                  const Outcome& outcome) {
  std::vector<std::pair<std::string, std::string>> rows = {
      {"model", options.model},
      {"data", options.data.empty() ? "what the run holds for evaluation"
                                    : options.data},
      {"computed in", generator.arithmetic},
      {"samples", WithCommas(outcome.samples)},
      {"targets", WithCommas(static_cast<int64_t>(outcome.result.count))}};
  for (const auto& [name, value] : outcome.numbers) {
    rows.emplace_back(name, absl::StrFormat("%.6g", value));
  }
  rows.emplace_back("took", ShortDuration(outcome.seconds));
  if (!options.output.empty()) rows.emplace_back("output", options.output);
  return PrintableText(TableText(rows));
}

// Called before the evaluation, so that an unusable folder fails early.
absl::Status PrepareOutput(const std::string& folder) {
  std::error_code error;
  if (fs::exists(folder) && !fs::is_empty(folder, error)) {
    return absl::AlreadyExistsError(absl::StrCat(
        "--output: ", folder,
        " already holds files; name a new folder, or an empty one"));
  }
  return MakeFolder(folder);
}

absl::Status Write(const std::string& folder, const std::string& json,
                   const Outcome& outcome) {
  if (outcome.result.measurement.has_value()) {
    for (const MeasuredCurve& curve : outcome.result.measurement->curves) {
      CAPSTAN_RETURN_IF_ERROR(
          ReplaceFile(absl::StrCat(folder, "/", curve.name, ".svg"),
                      MeasuredCurvesSvg({{0, curve}})));
    }
    for (const MeasuredArray& array : outcome.result.measurement->arrays) {
      CAPSTAN_RETURN_IF_ERROR(
          WriteNpy<double>(absl::StrCat(folder, "/", array.name, ".npy"),
                           array.shape, array.values));
    }
  }
  if (!outcome.answers.empty()) {
    CAPSTAN_RETURN_IF_ERROR(
        evaluate::WriteSamples(folder, "answers", outcome.answers));
  }
  // Written last: its presence marks the folder as complete.
  return ReplaceFile(folder + "/eval.json", json);
}

absl::Status Report(const EvalOptions& options, const Generator& generator,
                    const Outcome& outcome) {
  const std::string json = Json(options, generator, outcome);
  if (!options.output.empty()) {
    CAPSTAN_RETURN_IF_ERROR(Write(FromCaller(options.output), json, outcome));
  }
  std::cout << (options.json ? json : Table(options, generator, outcome))
            << std::flush;
  return absl::OkStatus();
}

int64_t Batches(const EvalOptions& options, const Loaded& loaded) {
  const int64_t micro = BatchSize(options, loaded.generator.loaded.config);
  const int64_t all = (loaded.data->size() + micro - 1) / micro;
  return options.max_batches > 0 ? std::min(all, options.max_batches) : all;
}

void AddFlags(Flags& flags, EvalOptions* options) {
  AddModelFlag(flags, &options->model);
  AddAdapterFlags(flags, &options->adapter);
  AddWeightsFlag(flags, &options->weights);
  flags
      .Add("--data", &options->data,
           "What to evaluate on, all of it, as the run reads its data; "
           "default: what the run that made the model evaluates on")
      .Type("FILE");
  flags
      .Add("--config", &options->configs,
           "Take data and objective from this run's config; for models that no "
           "run of the trainer has made")
      .Type("FILE");
  AddSet(flags, &options->overrides,
         "Sets a field: eval_data.max_length=512, eval_data=capstan.chat, "
         "train.seed=7; fields of the objective are flags, too: --goal_idx 3 "
         "14; may be given several times");
  flags
      .Add("--batch_size", &options->batch_size,
           "Samples of one forward; default: the run's")
      .Positive();
  flags
      .Add("--max_batches", &options->max_batches,
           "Only so many; default: the whole data")
      .Positive();
  flags.Add("--loss_only", &options->loss_only,
            "Leave out accuracy, which doubles the time");
  flags
      .Add(
          "--generate", &options->generate,
          "Also let the model answer so many samples of the data (prompts with "
          "trained answers): exact match and ROUGE-L")
      .Positive();
  flags
      .Add("--max_new_tokens", &options->max_new_tokens,
           "Of an answer of --generate")
      .Positive()
      .ShowDefault();
  flags
      .Add("--task", &options->tasks,
           "Instead of the loss, a task or a group of tasks in the Language "
           "Model Evaluation Harness's format, or a folder of them; may be "
           "given several times")
      .Type("FILE.yaml")
      .OneEach();
  flags
      .Add("--fewshot_data", &options->fewshot_data,
           "Rows that a task shows as examples; default: those it names, else "
           "its own")
      .Type("FILE");
  flags.Add("--num_fewshot", &options->num_fewshot,
            "How many examples a task shows; default: the task's");
  flags
      .Add("--max_samples", &options->max_samples,
           "Only the first so many of a task")
      .Positive();
  flags
      .Add("--bound_samples", &options->bound_samples,
           "Of masked diffusion: masks by which the likelihood of each of a "
           "task's answers is bounded")
      .Positive()
      .ShowDefault();
  flags.Add("--chat", &options->chat,
            "Ask a task's questions in the model's chat template");
  flags.Add("--json", &options->json, "Print JSON");
  flags
      .Add("--output", &options->output,
           "Also write eval.json, and what the objective draws, there")
      .Type("FOLDER");
  AddPluginPath(flags, &options->plugin_path);
  flags.AddRest(&options->rest);
}

// Whether flags that exclude each other were given.
absl::Status CheckFlags(const EvalOptions& options) {
  CAPSTAN_RETURN_IF_ERROR(
      CheckField(options.batch_size <= kMostBatch, "--batch_size",
                 absl::StrCat("at most ", kMostBatch), options.batch_size));
  const bool tasks = !options.tasks.empty();
  const std::pair<bool, const char*> of_loss[] = {
      {!options.configs.empty(), "--config"},
      {options.max_batches > 0, "--max_batches"},
      {options.loss_only, "--loss_only"},
      {options.generate > 0, "--generate"},
      {options.max_new_tokens != EvalOptions().max_new_tokens,
       "--max_new_tokens"}};
  for (const auto& [given, flag] : of_loss) {
    if (tasks && given) return FieldError(flag, "isn't for tasks (--task)");
  }
  const std::pair<bool, const char*> of_tasks[] = {
      {!options.fewshot_data.empty(), "--fewshot_data"},
      {options.num_fewshot.has_value(), "--num_fewshot"},
      {options.max_samples > 0, "--max_samples"},
      {options.bound_samples != EvalOptions().bound_samples, "--bound_samples"},
      {options.chat, "--chat"},
      {options.weights != "stored" && CountGpus() == 0, "--weights"}};
  for (const auto& [given, flag] : of_tasks) {
    if (!tasks && given) return FieldError(flag, "is for tasks (--task)");
  }
  if (tasks && !options.rest.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.rest[0], " is no flag of tasks (--task)"));
  }
  if (options.num_fewshot.value_or(0) < 0) {
    return FieldError("--num_fewshot", "must be 0 or greater");
  }
  return absl::OkStatus();
}

absl::StatusOr<int> Eval(const EvalOptions& options) {
  CAPSTAN_RETURN_IF_ERROR(PlaceHere(options.weights).status());
  CAPSTAN_RETURN_IF_ERROR(CheckFlags(options));
  // Must start no threads before forking ranks.
  at::set_num_threads(1);
  if (!options.output.empty()) {
    CAPSTAN_RETURN_IF_ERROR(PrepareOutput(FromCaller(options.output)));
  }
  if (!options.tasks.empty()) return EvalTasks(options);
  CAPSTAN_ASSIGN_OR_RETURN(Loaded loaded, LoadAsTyped(options));
  const DatasetReader& data = *loaded.data;
  for (const std::string& note : data.notes()) {
    std::cerr << PrintableText(note) << "\n";
  }
  std::vector<evaluate::Request> requests;
  if (options.generate > 0) {
    CAPSTAN_ASSIGN_OR_RETURN(requests,
                             evaluate::AnswersOf(data, options.generate));
  }
  Outcome outcome;
  const auto on_rank = [&](ProcessGroup& group, WorkBar& bar) -> absl::Status {
    CAPSTAN_RETURN_IF_ERROR(Evaluate(options, loaded, group, bar, &outcome));
    if (requests.empty()) return absl::OkStatus();
    return Answer(options, loaded, requests, group, bar, &outcome);
  };
  return LaunchEvaluation(options, &loaded.generator, Batches(options, loaded),
                          on_rank, [&](double seconds) {
                            outcome.seconds = seconds;
                            return Report(options, loaded.generator, outcome);
                          });
}

const RegisterFunction<EvalOptions> eval("eval", AddFlags, Eval);

}  // namespace

int LaunchEvaluation(
    const EvalOptions& options, Generator* generator, int64_t batches,
    const std::function<absl::Status(ProcessGroup& group, WorkBar& bar)>&
        evaluate,
    const std::function<absl::Status(double seconds)>& report) {
  constexpr int kMostRanks = 8;
  const int gpus = generator->place.gpu ? CountGpus() : 0;
  const int64_t most = gpus > 0 ? gpus : std::min(AvailableCores(), kMostRanks);
  const int ranks = static_cast<int>(std::clamp<int64_t>(batches, 1, most));
  return LaunchRanks(ranks, [&](const RankInfo& rank) -> absl::Status {
    at::set_num_threads(rank.threads);
    WantLedgers();
    CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<ProcessGroup> group,
                             CreateProcessGroup(rank, gpus));
    CAPSTAN_RETURN_IF_ERROR(generator->BindOn(group->device()));
    CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<Watchdog> watchdog,
                             Watch(generator->loaded.config.train(), *group));
    const Watchdog::Activity activity(watchdog.get(), "evaluation", /*step=*/0);
    double seconds = 0.0;
    {
      WorkBar bar("evaluating", options.json ? STDERR_FILENO : STDOUT_FILENO);
      CAPSTAN_RETURN_IF_ERROR(evaluate(*group, bar));
      seconds = bar.Seconds();
    }
    CAPSTAN_RETURN_IF_ERROR(MappedFile::CheckAll());
    return rank.rank == 0 ? report(seconds) : absl::OkStatus();
  });
}

}  // namespace capstan
