// SPDX-License-Identifier: Apache-2.0
#include "inference/load/generator.h"

#include <google/protobuf/any.pb.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/error_code.h"
#include "base/json.h"
#include "base/status.h"
#include "host/config/create_slot.h"
#include "host/config/hub_path.h"
#include "host/config/load_config.h"
#include "host/storage/cache.h"
#include "host/storage/storage.h"
#include "inference/load/bind.h"
#include "inference/load/create_model.h"
#include "inference/load/run_tokenizer.h"
#include "plugins/sdk/model.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// Parses the file; is_discarded() if it can't be read or isn't JSON.
Json ReadJsonFile(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadWholeFile(path);
  return text.ok() ? ParseJson<Json>(*text) : Json(Json::value_t::discarded);
}

bool IsAdapter(const fs::path& folder) {
  return PathExists((folder / "adapter_config.json").string()) &&
         !PathExists((folder / "config.json").string());
}

// The folder of an adapter's base: as the run's config has it, or as
// adapter_config.json names it, from the adapter's folder or the current one.
absl::StatusOr<std::string> BaseOf(const std::string& adapter,
                                   const ConfigContext& context,
                                   const RunFolders& runs) {
  const absl::optional<RunConfig> run = runs.RunOf(adapter, context);
  if (run.has_value()) {
    const std::string base = BaseModelOf(*run).folder;
    if (!base.empty() && IsFolder(base)) return base;
  }
  const Json json = ReadJsonFile(adapter + "/adapter_config.json");
  std::string base;
  if (json.is_object()) {
    const auto named = json.find("base_model_name_or_path");
    if (named != json.end() && named->is_string()) base = *named;
  }
  for (const fs::path& place : {fs::path(adapter) / base, fs::path(base)}) {
    if (!base.empty() && IsFolder(place.string())) {
      return ModelFolder(place.string(), runs);
    }
  }
  return WithCode(
      absl::NotFoundError(absl::StrCat(
          adapter, " is an adapter, and its base",
          base.empty() ? "" : absl::StrCat(", ", base, ","),
          " isn't a folder here: say --model=BASE --adapter=", adapter)),
      "model/adapter");
}

std::string InQuotes(const std::string& text) {
  return absl::StrCat("\"", absl::Utf8SafeCEscape(text), "\"");
}

// "CausalLM" -> "causal_lm"
std::string SnakeCase(const std::string& name) {
  std::string snake;
  for (size_t i = 0; i < name.size(); ++i) {
    const bool upper = std::isupper(static_cast<unsigned char>(name[i])) != 0;
    const bool after_lower =
        i > 0 && std::islower(static_cast<unsigned char>(name[i - 1])) != 0;
    if (upper && after_lower) snake += '_';
    snake +=
        static_cast<char>(std::tolower(static_cast<unsigned char>(name[i])));
  }
  return snake;
}

// A part of a plugin's name, taken from a file. Anything else would be config
// text of the file's making.
absl::Status CheckName(const std::string& path, absl::string_view key,
                       absl::string_view name) {
  const bool plain =
      !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
        return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_';
      });
  if (plain) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      path, ": ", key, " is \"", absl::Utf8SafeCEscape(name.substr(0, 100)),
      "\", for which there can be no plugin: one's name has letters, digits "
      "and _"));
}

std::string ObjectiveSlot(const std::string& package) {
  return absl::StrCat("objective { [plugin/", package, ".Config] {} }\n");
}

std::string ObjectiveText(const RunConfig& run) {
  RunConfig objective;
  *objective.mutable_objective() = run.objective();
  return PrintConfig(objective);
}

// The package of the plugin that reads folders of a model_type: one that says
// so (plugins/sdk/model_types.h), else capstan.MODEL_TYPE.
absl::StatusOr<std::string> ModelPackage(const std::string& path,
                                         const std::string& model_type,
                                         const PluginHost& host) {
  std::map<std::string, std::string> readers = host.ModelTypes();
  if (readers.count(model_type) == 0) {
    CAPSTAN_RETURN_IF_ERROR(CheckName(path, "model_type", model_type));
    host.BuildAll();
    readers = host.ModelTypes();
  }
  const auto reader = readers.find(model_type);
  if (reader != readers.end()) return reader->second;
  const std::string package = absl::StrCat("capstan.", model_type);
  const std::vector<std::string> packages = host.Available();
  if (std::find(packages.begin(), packages.end(), package) != packages.end()) {
    return package;
  }
  return WithCode(absl::NotFoundError(absl::StrCat(
                      path, ": model_type \"", model_type,
                      "\" is read by no plugin; known are ",
                      absl::StrJoin(readers, ", ",
                                    [](std::string* out, const auto& known) {
                                      absl::StrAppend(out, "\"", known.first,
                                                      "\"");
                                    }))),
                  "model/type");
}

// A model without weights, and the config that it was made from.
struct MadeModel {
  google::protobuf::Any config;
  std::unique_ptr<Model> model;
};

// The config of a Hugging Face folder's model and objective. The model's
// package follows from the model_type in its config.json.
// The objective is `run`'s, else the one the model names, else follows from the
// architecture: "LlamaForCausalLM" is sampled by capstan.causal_lm. If the
// model has to be made to ask it, it is left in `made`.
absl::StatusOr<std::string> FolderConfig(const std::string& folder,
                                         const ConfigContext& context,
                                         const absl::optional<RunConfig>& run,
                                         MadeModel* made) {
  const std::string path = folder + "/config.json";
  const Json json = ReadJsonFile(path);
  if (!json.is_object()) {
    return WithCode(
        absl::NotFoundError(absl::StrCat(
            folder,
            " is neither a checkpoint nor a Hugging Face folder: it has "
            "no readable config.json")),
        "model/folder");
  }
  std::string architecture;
  if (json.contains("architectures") && json["architectures"].is_array() &&
      !json["architectures"].empty() && json["architectures"][0].is_string()) {
    architecture = json["architectures"][0];
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::string package,
                           ReaderOfFolder(folder, *context.host));
  const std::string slot =
      absl::StrCat("model { [plugin/", package, ".Config] { pretrained: ",
                   InQuotes(fs::absolute(folder).string()), " } }\n");
  if (run.has_value() && run->has_objective())
    return slot + ObjectiveText(*run);
  CAPSTAN_ASSIGN_OR_RETURN(const LoadedConfig loaded,
                           ParseConfig(slot, folder, context));
  made->config = loaded.config.model();
  CAPSTAN_ASSIGN_OR_RETURN(made->model, CreateModel(loaded, *context.host));
  const TokenModel* const tokens = made->model->token_model();
  if (tokens == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        folder, " is no model of texts, and doesn't say which run made it"));
  }
  if (!tokens->sampling_objective().empty()) {
    return slot + ObjectiveSlot(tokens->sampling_objective());
  }
  const size_t split = architecture.find("For");
  if (split == std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": no architectures in it"));
  }
  const std::string objective = SnakeCase(architecture.substr(split + 3));
  CAPSTAN_RETURN_IF_ERROR(CheckName(path, "architectures", objective));
  return slot + ObjectiveSlot(absl::StrCat("capstan.", objective));
}

// The adapter's folder, then its base's: which have the model's tokenizer.
std::vector<std::string> TokenizerFoldersOf(const ModelSources& sources) {
  std::vector<std::string> folders = {sources.adapter, sources.model};
  if (sources.adapter.empty()) folders.erase(folders.begin());
  return folders;
}

void FindTokenizer(const ModelSources& sources, Generator* generator) {
  for (const std::string& folder : TokenizerFoldersOf(sources)) {
    absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
        LoadTokenizer(folder);
    generator->tokenizer_error = tokenizer.status();
    if (absl::IsNotFound(tokenizer.status())) continue;
    if (tokenizer.ok()) generator->tokenizer = *std::move(tokenizer);
    break;
  }
}

// The adapter slot's text, or "".
std::string AdapterText(const ModelSources& sources) {
  if (sources.adapter.empty()) return "";
  return absl::StrCat("adapter { lora { pretrained: ",
                      InQuotes(fs::absolute(sources.adapter).string()),
                      " } }\n");
}

// Creates `text`'s model, unless it is `made` already, and its objective, and
// loads the weights from `folder`. Unless `other_base`, a checkpoint's frozen
// weights must be those of its base as it is now.
absl::Status Load(const std::string& folder, const RunFolders& runs,
                  const std::string& text,
                  const std::vector<std::string>& overrides,
                  const WeightPlace& place, bool other_base, MadeModel made,
                  Generator* generator) {
  CAPSTAN_ASSIGN_OR_RETURN(
      generator->loaded,
      ParseConfig(text, folder, DefaultConfigContext(generator->host.get()),
                  overrides));
  const LoadedConfig& loaded = generator->loaded;
  if (made.model != nullptr && !loaded.config.has_adapter() &&
      made.config.value() == loaded.config.model().value() &&
      made.config.type_url() == loaded.config.model().type_url()) {
    generator->model = std::move(made.model);
  } else {
    CAPSTAN_ASSIGN_OR_RETURN(generator->model,
                             CreateModel(loaded, *generator->host));
  }
  CAPSTAN_ASSIGN_OR_RETURN(
      generator->objective,
      CreateSlot<Objective>(loaded, "objective", loaded.config.objective(),
                            *generator->host));
  generator->folder = folder;
  generator->runs = &runs;
  generator->place = place;
  if (!place.gpu) {
    CAPSTAN_RETURN_IF_ERROR(
        BindOnCpu(folder, runs, place.form, *generator->model));
  }
  if (other_base || !runs.IsCheckpoint(folder)) return absl::OkStatus();
  return runs.CheckFrozenWeights(folder, BaseModelOf(loaded.config).folder);
}

// The parts of a run's config, besides model and objective, that evaluation
// needs.
std::string EvaluationText(const RunConfig& run, bool with_tokenizer) {
  RunConfig needed;
  if (run.has_eval_data() || run.has_train_data()) {
    const google::protobuf::Any& data =
        run.has_eval_data() ? run.eval_data() : run.train_data();
    *needed.mutable_eval_data() =
        with_tokenizer ? data : WithoutTokenizer(data);
  }
  needed.mutable_train()->set_seed(run.train().seed());
  needed.mutable_batch()->set_micro_batch_size(run.batch().micro_batch_size());
  return PrintConfig(needed);
}

// A checkpoint's model, with adapter, and an objective.
std::string ModelText(const RunConfig& checkpoint, const RunConfig& run) {
  RunConfig text;
  *text.mutable_model() = checkpoint.model();
  if (checkpoint.has_adapter()) {
    *text.mutable_adapter() = checkpoint.adapter();
  }
  *text.mutable_objective() = run.objective();
  return PrintConfig(text);
}

}  // namespace

absl::Status Generator::BindOn(at::Device device) {
  if (!place.gpu) return absl::OkStatus();
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::string dtype,
      BindOnGpu(folder, *runs, place.form, device, *model));
  arithmetic = absl::StrCat(dtype, " on GPUs");
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReaderOfFolder(const std::string& folder,
                                           const PluginHost& host) {
  const std::string path = folder + "/config.json";
  const Json json = ReadJsonFile(path);
  if (!json.is_object() || !json.contains("model_type") ||
      !json["model_type"].is_string()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": no model_type in it"));
  }
  return ModelPackage(path, json["model_type"], host);
}

std::string ModelFolder(const std::string& path, const RunFolders& runs) {
  const std::string folder = FollowLatestRun(path);
  if (PathExists(folder + "/final")) return folder + "/final";
  const std::string newest = runs.NewestCheckpoint(folder);
  if (!newest.empty()) return newest;
  // Other tools (DeepSpeed) also write a `latest` in a model's folder.
  for (const char* name : {"config.json", "adapter_config.json"}) {
    if (PathExists(absl::StrCat(folder, "/", name))) return folder;
  }
  const std::string latest = FollowLatestRun(folder + "/latest");
  return IsFolder(latest) && latest != folder ? ModelFolder(latest, runs)
                                              : folder;
}

absl::StatusOr<ModelSources> FindSources(const std::string& model,
                                         const AdapterOptions& options,
                                         const ConfigContext& context,
                                         const RunFolders& runs) {
  const std::string& caller = context.caller_folder;
  const std::string& adapter = options.folder;
  ModelSources sources;
  std::string folder = (fs::path(caller) / model).string();
  if (IsHubPath(model)) {
    CAPSTAN_ASSIGN_OR_RETURN(folder, ResolveHubPath(model, HubKind::kModel));
  } else if (IsAddress(model)) {
    CAPSTAN_ASSIGN_OR_RETURN(folder, LocalCopy(model, ModelOfRun));
  }
  sources.model = ModelFolder(folder, runs);
  if (!IsFolder(sources.model)) {
    return WithCode(
        absl::NotFoundError(absl::StrCat("--model=", model, ": no such folder",
                                         HubDownloadHint(model, "--model"))),
        "model/folder");
  }
  if (!adapter.empty()) {
    CAPSTAN_ASSIGN_OR_RETURN(const std::string local,
                             LocalCopy(adapter, ModelOfRun));
    sources.adapter = ModelFolder((fs::path(caller) / local).string(), runs);
    if (!IsAdapter(sources.adapter)) {
      return WithCode(absl::NotFoundError(absl::StrCat(
                          "--adapter=", adapter,
                          ": no folder with an adapter_config.json")),
                      "model/adapter");
    }
  } else if (IsAdapter(sources.model)) {
    sources.adapter = std::exchange(sources.model, "");
    CAPSTAN_ASSIGN_OR_RETURN(sources.model,
                             BaseOf(sources.adapter, context, runs));
  }
  if (!sources.adapter.empty() && !options.other_base) {
    CAPSTAN_ASSIGN_OR_RETURN(
        sources.note, runs.CheckBaseWeights(sources.adapter, sources.model));
  }
  return sources;
}

absl::StatusOr<Generator> LoadGenerator(
    const std::string& model, const AdapterOptions& adapter,
    std::unique_ptr<PluginHost> host, const RunFolders& runs,
    const std::vector<std::string>& overrides, WeightPlace place) {
  Generator generator;
  generator.host = std::move(host);
  const ConfigContext context = DefaultConfigContext(generator.host.get());
  CAPSTAN_ASSIGN_OR_RETURN(const ModelSources sources,
                           FindSources(model, adapter, context, runs));
  std::string text;
  MadeModel made;
  absl::optional<RunConfig> run;
  if (runs.IsCheckpoint(sources.model)) {
    CAPSTAN_ASSIGN_OR_RETURN(text, runs.CheckpointConfig(sources.model));
  } else {
    // How texts are made, the run that trained the adapter says.
    if (!sources.adapter.empty()) run = runs.RunOf(sources.adapter, context);
    if (!run.has_value()) run = runs.RunOf(sources.model, context);
    CAPSTAN_ASSIGN_OR_RETURN(text,
                             FolderConfig(sources.model, context, run, &made));
  }
  absl::StrAppend(&text, AdapterText(sources));
  CAPSTAN_RETURN_IF_ERROR(Load(sources.model, runs, text, overrides, place,
                               adapter.other_base, std::move(made),
                               &generator));
  if (generator.model->token_model() == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        sources.model, " is no model of texts: it can't write any"));
  }
  FindTokenizer(sources, &generator);
  generator.train_data =
      (run.has_value() ? *run : generator.loaded.config).train_data();
  generator.note = sources.note;
  return generator;
}

absl::StatusOr<EvaluationSource> FindToEvaluate(const std::string& model,
                                                const AdapterOptions& adapter,
                                                const RunConfig* run,
                                                const ConfigContext& context,
                                                const RunFolders& runs) {
  CAPSTAN_ASSIGN_OR_RETURN(const ModelSources sources,
                           FindSources(model, adapter, context, runs));
  EvaluationSource source;
  source.folder = sources.model;
  source.other_base = adapter.other_base;
  source.note = sources.note;
  source.tokenizer_folders = TokenizerFoldersOf(sources);
  absl::optional<RunConfig> settings;
  if (run != nullptr) settings = *run;
  if (runs.IsCheckpoint(sources.model)) {
    CAPSTAN_ASSIGN_OR_RETURN(const std::string config,
                             runs.CheckpointConfig(sources.model));
    CAPSTAN_ASSIGN_OR_RETURN(const LoadedConfig checkpoint,
                             ParseConfig(config, sources.model, context));
    if (!settings.has_value()) settings = checkpoint.config;
    source.config = ModelText(checkpoint.config, *settings);
    // For its config.json.
    if (PathExists(sources.model + "/tokenizer.json")) {
      source.tokenizer_folders.push_back(BaseModelOf(checkpoint.config).folder);
    }
  } else {
    if (!settings.has_value()) {
      settings = runs.RunOf(
          sources.adapter.empty() ? sources.model : sources.adapter, context);
    }
    MadeModel made;
    CAPSTAN_ASSIGN_OR_RETURN(
        source.config, FolderConfig(sources.model, context, settings, &made));
  }
  if (settings.has_value()) {
    const bool own_tokenizer = std::any_of(
        source.tokenizer_folders.begin(), source.tokenizer_folders.end(),
        [](const std::string& folder) {
          return PathExists(folder + "/tokenizer.json");
        });
    // What the caller's config says is compared instead.
    absl::StrAppend(
        &source.config,
        EvaluationText(*settings, (run != nullptr && !AddsTokens(*run)) ||
                                      !own_tokenizer));
    source.data_is_training =
        !settings->has_eval_data() && settings->has_train_data();
  }
  absl::StrAppend(&source.config, AdapterText(sources));
  return source;
}

absl::StatusOr<Generator> LoadToEvaluate(
    const EvaluationSource& source, std::unique_ptr<PluginHost> host,
    const RunFolders& runs, const std::vector<std::string>& overrides,
    WeightPlace place) {
  Generator generator;
  generator.host = std::move(host);
  CAPSTAN_RETURN_IF_ERROR(Load(source.folder, runs, source.config, overrides,
                               place, source.other_base, MadeModel(),
                               &generator));
  return generator;
}

}  // namespace capstan
