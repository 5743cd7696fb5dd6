// SPDX-License-Identifier: Apache-2.0
#include "trainer/commands/generator.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"
#include "plugins/sdk/packed_parameters.h"
#include "plugins/sdk/tokenizer.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/commands/command.h"
#include "trainer/config/hub_path.h"
#include "trainer/session/run_parts.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const std::map<std::string, WeightForm>& WeightForms() {
  static const auto* const forms =
      new std::map<std::string, WeightForm>{{"stored", WeightForm::kStored},
                                            {"float32", WeightForm::kFloat32},
                                            {"bfloat16", WeightForm::kBfloat16},
                                            {"int8", WeightForm::kInt8}};
  return *forms;
}

// Which weights to load.
struct Sources {
  std::string model;    // a Hugging Face folder or a checkpoint
  std::string adapter;  // a PEFT folder, or ""
};

bool IsAdapter(const fs::path& folder) {
  return PathExists((folder / "adapter_config.json").string()) &&
         !PathExists((folder / "config.json").string());
}

// Parses the file; is_discarded() if it can't be read or isn't JSON.
Json ReadJson(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadWholeFile(path);
  return text.ok() ? ParseJson<Json>(*text) : Json(Json::value_t::discarded);
}

// The base named in an adapter's folder.
absl::StatusOr<std::string> BaseOf(const std::string& adapter) {
  const Json json = ReadJson(adapter + "/adapter_config.json");
  std::string base;
  if (json.is_object()) {
    const auto named = json.find("base_model_name_or_path");
    if (named != json.end() && named->is_string()) base = *named;
  }
  if (!base.empty() && IsFolder(base)) return base;
  return absl::NotFoundError(absl::StrCat(
      adapter, " is an adapter, and its base",
      base.empty() ? "" : absl::StrCat(", ", base, ","),
      " isn't a folder here: say --model=BASE --adapter=", adapter));
}

absl::StatusOr<Sources> Find(const std::string& caller,
                             const std::string& model,
                             const std::string& adapter) {
  Sources sources;
  std::string folder = (fs::path(caller) / model).string();
  if (IsHubPath(model)) {
    CAPSTAN_ASSIGN_OR_RETURN(folder, ResolveHubPath(model, HubKind::kModel));
  }
  sources.model = ModelFolder(folder);
  if (!IsFolder(sources.model)) {
    return absl::NotFoundError(absl::StrCat("--model=", model,
                                            ": no such folder",
                                            HubDownloadHint(model, "--model")));
  }
  if (!adapter.empty()) {
    sources.adapter = ModelFolder((fs::path(caller) / adapter).string());
    if (!IsAdapter(sources.adapter)) {
      return absl::NotFoundError(absl::StrCat(
          "--adapter=", adapter, ": no folder with an adapter_config.json"));
    }
  } else if (IsAdapter(sources.model)) {
    sources.adapter = std::exchange(sources.model, "");
    CAPSTAN_ASSIGN_OR_RETURN(sources.model, BaseOf(sources.adapter));
  }
  return sources;
}

std::string InQuotes(const std::string& text) {
  return absl::StrCat(
      "\"", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"\"", "\\\""}}), "\"");
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

// The config of the run that made a folder; nullopt if there was none or one of
// its plugins is missing.
absl::optional<RunConfig> RunOf(const std::string& folder,
                                const ConfigContext& context) {
  const Json json = ReadJson(folder + "/capstan.json");
  if (!json.is_object() || !json.contains("config") ||
      !json["config"].is_string()) {
    return absl::nullopt;
  }
  absl::StatusOr<LoadedConfig> run =
      ParseConfig(json["config"], folder + "/capstan.json", context);
  if (!run.ok()) return absl::nullopt;
  return std::move(run->config);
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
  const std::map<std::string, std::string> readers = host.ModelTypes();
  const auto reader = readers.find(model_type);
  if (reader != readers.end()) return reader->second;
  CAPSTAN_RETURN_IF_ERROR(CheckName(path, "model_type", model_type));
  const std::string package = absl::StrCat("capstan.", model_type);
  const std::vector<std::string> packages = host.Available();
  if (std::find(packages.begin(), packages.end(), package) != packages.end()) {
    return package;
  }
  return absl::NotFoundError(absl::StrCat(
      path, ": model_type \"", model_type,
      "\" is read by no plugin; known are ",
      absl::StrJoin(readers, ", ", [](std::string* out, const auto& known) {
        absl::StrAppend(out, "\"", known.first, "\"");
      })));
}

// The config of a Hugging Face folder's model and objective. The model's
// package follows from the model_type in its config.json.
// The objective is `run`'s, else the one the model names, else follows from the
// architecture: "LlamaForCausalLM" is sampled by capstan.causal_lm.
absl::StatusOr<std::string> FolderConfig(const std::string& folder,
                                         const ConfigContext& context,
                                         const absl::optional<RunConfig>& run) {
  const std::string path = folder + "/config.json";
  const Json json = ReadJson(path);
  if (!json.is_object()) {
    return absl::NotFoundError(absl::StrCat(
        folder,
        " is neither a checkpoint nor a Hugging Face folder: it has "
        "no readable config.json"));
  }
  std::string architecture;
  if (json.contains("architectures") && json["architectures"].is_array() &&
      !json["architectures"].empty() && json["architectures"][0].is_string()) {
    architecture = json["architectures"][0];
  }
  if (!json.contains("model_type") || !json["model_type"].is_string()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": no model_type in it"));
  }
  const std::string model_type = json["model_type"];
  CAPSTAN_ASSIGN_OR_RETURN(const std::string package,
                           ModelPackage(path, model_type, *context.host));
  const std::string slot =
      absl::StrCat("model { [plugin/", package, ".Config] { pretrained: ",
                   InQuotes(fs::absolute(folder).string()), " } }\n");
  if (run.has_value() && run->has_objective())
    return slot + ObjectiveText(*run);
  CAPSTAN_ASSIGN_OR_RETURN(const LoadedConfig loaded,
                           ParseConfig(slot, folder, context));
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model,
                           CreateModel(loaded, *context.host));
  const TokenModel* const tokens = model->token_model();
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

template <typename Base>
absl::StatusOr<std::unique_ptr<Base>> Create(const google::protobuf::Any& any,
                                             PluginCategory category,
                                             PluginHost& host) {
  return host.Create<Base>(TypeOf(any), category, any.value());
}

// The bytes of a packed parameter.
absl::StatusOr<at::Tensor> PackedWeight(const Model& model, int index) {
  const int64_t bytes = PackedBytesOf(model, index);
  at::Tensor weight = at::empty({bytes}, at::kByte);
  auto* const out = weight.mutable_data_ptr<uint8_t>();
  const auto& packed = dynamic_cast<const PackedParameters&>(model);
  absl::Status status;
  std::mutex mutex;
  constexpr int64_t kPiece = 1 << 16;
  at::parallel_for(0, bytes, kPiece, [&](int64_t begin, int64_t end) {
    absl::Status piece =
        packed.PackedValue(index, begin, end - begin, out + begin);
    const std::lock_guard<std::mutex> lock(mutex);
    status.Update(std::move(piece));
  });
  if (!status.ok()) return status;
  return weight;
}

// Binds a folder's weights, or a checkpoint's, in `form`, or, of a model that
// isn't made for that, float32 tensors; and the bytes of packed parameters.
absl::Status BindWeights(const std::string& folder, bool is_checkpoint,
                         WeightForm form, Model& model) {
  const std::vector<ParameterSpec>& specs = model.parameters();
  auto* const inference = dynamic_cast<InferenceWeights*>(&model);
  if (inference == nullptr && form != WeightForm::kStored &&
      form != WeightForm::kFloat32) {
    return FieldError("--weights",
                      "this model computes with float32 weights alone");
  }
  const auto initial = [&](int index, uint64_t seed, float* out) {
    if (PackedBytesOf(model, index) > 0) return absl::OkStatus();  // below
    return model.InitialValue(index, seed, 0, specs[index].numel(), out);
  };
  std::vector<at::Tensor> weights;
  if (is_checkpoint) {
    CAPSTAN_ASSIGN_OR_RETURN(weights,
                             CheckpointWeights(folder, specs, initial));
  } else {
    for (size_t i = 0; i < specs.size(); ++i) {
      const int index = static_cast<int>(i);
      at::Tensor weight;
      if (inference != nullptr) weight = inference->StoredWeight(index);
      if (!weight.defined()) {
        weight = at::empty(specs[i].shape, at::kFloat);
        CAPSTAN_RETURN_IF_ERROR(
            initial(index, /*seed=*/0, weight.mutable_data_ptr<float>()));
      }
      weights.push_back(std::move(weight));
    }
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    if (PackedBytesOf(model, static_cast<int>(i)) == 0) continue;
    CAPSTAN_ASSIGN_OR_RETURN(weights[i],
                             PackedWeight(model, static_cast<int>(i)));
  }
  if (inference != nullptr) {
    return inference->BindForInference(std::move(weights), form);
  }
  model.Bind(std::move(weights));
  return absl::OkStatus();
}

// Takes the tokenizer from the adapter, else from its base.
void FindTokenizer(const Sources& sources, Generator* generator) {
  for (const std::string& folder : {sources.adapter, sources.model}) {
    if (folder.empty()) continue;
    absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
        LoadTokenizer(folder);
    generator->tokenizer_error = tokenizer.status();
    if (absl::IsNotFound(tokenizer.status())) continue;
    if (tokenizer.ok()) generator->folder_tokenizer = *std::move(tokenizer);
    break;
  }
  generator->tokenizer = generator->folder_tokenizer.get();
}

// The adapter slot's text, or "".
std::string AdapterText(const Sources& sources) {
  if (sources.adapter.empty()) return "";
  return absl::StrCat("adapter { lora { pretrained: ",
                      InQuotes(fs::absolute(sources.adapter).string()),
                      " } }\n");
}

// Creates `text`'s model and objective, and loads the weights from `folder`.
absl::Status Load(const std::string& folder, const std::string& text,
                  const std::vector<std::string>& overrides, WeightForm form,
                  Generator* generator) {
  CAPSTAN_ASSIGN_OR_RETURN(
      generator->loaded,
      ParseConfig(text, folder, DefaultConfigContext(generator->host.get()),
                  overrides));
  const LoadedConfig& loaded = generator->loaded;
  CAPSTAN_ASSIGN_OR_RETURN(generator->model,
                           CreateModel(loaded, *generator->host));
  CAPSTAN_ASSIGN_OR_RETURN(
      generator->objective,
      Create<Objective>(loaded.config.objective(), PluginCategory::kObjective,
                        *generator->host));
  return BindWeights(folder, IsCheckpoint(folder), form, *generator->model);
}

// The parts of a run's config, besides model and objective, that evaluation
// needs.
std::string EvaluationText(const RunConfig& run) {
  RunConfig needed;
  if (run.has_eval_data()) {
    *needed.mutable_eval_data() = run.eval_data();
  } else if (run.has_train_data()) {
    *needed.mutable_eval_data() = run.train_data();
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

absl::Status SamplingOptions::Check() const {
  if (!max_new_tokens.has_value() || *max_new_tokens >= 1) {
    return absl::OkStatus();
  }
  return FieldError(
      "--max_new_tokens",
      absl::StrCat("must be greater than 0, is ", *max_new_tokens));
}

SampleOptions SamplingOptions::Sampling(int64_t default_tokens) const {
  SampleOptions sample;
  sample.max_new_tokens = max_new_tokens.value_or(default_tokens);
  sample.greedy = greedy;
  sample.temperature = temperature;
  sample.top_k = top_k;
  sample.top_p = top_p;
  sample.seed = seed;
  return sample;
}

void AddModelFlag(Flags& flags, std::string* model) {
  flags
      .Add("--model", model,
           "A Hugging Face folder, a run's folder, or one of its checkpoints")
      .Type("FOLDER")
      .Required();
}

void AddAdapterFlag(Flags& flags, std::string* adapter) {
  flags
      .Add("--adapter", adapter,
           "A folder with a LoRA adapter for the model (PEFT's files)")
      .Type("FOLDER");
}

void AddWeightsFlag(Flags& flags, std::string* weights) {
  flags
      .Add(
          "--weights", weights,
          "How matrices are kept in memory: stored (as the folder has them, in "
          "its files' own memory), float32, bfloat16 or int8 (a scale a row)")
      .Type("FORM")
      .ShowDefault()
      .Check([](const std::string& value) {
        return WeightForms().count(value) > 0
                   ? std::string()
                   : std::string("is stored, float32, bfloat16 or int8");
      });
}

WeightForm WeightFormOf(const std::string& name) {
  return WeightForms().at(name);
}

void AddSamplingFlags(Flags& flags, SamplingOptions* options) {
  AddAdapterFlag(flags, &options->adapter);
  AddWeightsFlag(flags, &options->weights);
  flags.Add("--max_new_tokens", &options->max_new_tokens,
            "How many tokens to add");
  flags.Add("--greedy", &options->greedy, "Always the likeliest token");
  flags.Add("--temperature", &options->temperature, "Divides the logits");
  flags.Add("--top_k", &options->top_k,
            "Sample from the k likeliest tokens only");
  flags.Add("--top_p", &options->top_p,
            "Sample from the likeliest tokens of total probability p");
  flags.Add("--seed", &options->seed, "Of the random numbers");
  flags
      .Add("--set", &options->overrides,
           "Sets a field of the objective, which samples: for masked diffusion "
           "(LLaDA) objective.steps=64, objective.block_length=32, "
           "objective.remasking=RANDOM, objective.cfg_scale=1; may be given "
           "several times")
      .Type("PATH=VALUE")
      .OneEach();
  AddPluginPath(flags, &options->plugin_path);
}

std::string ModelFolder(const std::string& path) {
  const std::string folder = FollowLatestRun(path);
  if (PathExists(folder + "/final")) return folder + "/final";
  const std::string newest = NewestCheckpoint(folder);
  if (!newest.empty()) return newest;
  // Other tools (DeepSpeed) also write a `latest` in a model's folder.
  for (const char* name : {"config.json", "adapter_config.json"}) {
    if (PathExists(absl::StrCat(folder, "/", name))) return folder;
  }
  const std::string latest = FollowLatestRun(folder + "/latest");
  return IsFolder(latest) ? ModelFolder(latest) : folder;
}

absl::StatusOr<Generator> LoadGenerator(
    const std::string& model, const std::string& adapter,
    const std::vector<std::string>& plugin_path,
    const std::vector<std::string>& overrides, WeightForm weights) {
  Generator generator;
  generator.host = std::make_unique<PluginHost>(AllFromCaller(plugin_path));
  const ConfigContext context = DefaultConfigContext(generator.host.get());
  CAPSTAN_ASSIGN_OR_RETURN(const Sources sources,
                           Find(context.caller_folder, model, adapter));
  const bool is_checkpoint = IsCheckpoint(sources.model);
  std::string text;
  if (is_checkpoint) {
    CAPSTAN_ASSIGN_OR_RETURN(text, CheckpointConfig(sources.model));
  } else {
    CAPSTAN_ASSIGN_OR_RETURN(text, FolderConfig(sources.model, context,
                                                RunOf(sources.model, context)));
  }
  absl::StrAppend(&text, AdapterText(sources));
  CAPSTAN_RETURN_IF_ERROR(
      Load(sources.model, text, overrides, weights, &generator));
  if (generator.model->token_model() == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        sources.model, " is no model of texts: it can't write any"));
  }
  if (is_checkpoint) {
    absl::StatusOr<std::unique_ptr<DatasetReader>> data =
        Create<DatasetReader>(generator.loaded.config.train_data(),
                              PluginCategory::kDatasetReader, *generator.host);
    generator.tokenizer_error = data.status();
    if (data.ok()) generator.data = *std::move(data);
    if (generator.data) generator.tokenizer = generator.data->tokenizer();
  } else {
    FindTokenizer(sources, &generator);
  }
  return generator;
}

absl::StatusOr<EvaluationSource> FindToEvaluate(const std::string& model,
                                                const std::string& adapter,
                                                const RunConfig* run,
                                                const ConfigContext& context) {
  CAPSTAN_ASSIGN_OR_RETURN(const Sources sources,
                           Find(context.caller_folder, model, adapter));
  EvaluationSource source;
  source.folder = sources.model;
  absl::optional<RunConfig> settings;
  if (run != nullptr) settings = *run;
  if (IsCheckpoint(sources.model)) {
    CAPSTAN_ASSIGN_OR_RETURN(const std::string config,
                             CheckpointConfig(sources.model));
    CAPSTAN_ASSIGN_OR_RETURN(const LoadedConfig checkpoint,
                             ParseConfig(config, sources.model, context));
    if (!settings.has_value()) settings = checkpoint.config;
    source.config = ModelText(checkpoint.config, *settings);
  } else {
    if (!settings.has_value()) {
      settings = RunOf(
          sources.adapter.empty() ? sources.model : sources.adapter, context);
    }
    CAPSTAN_ASSIGN_OR_RETURN(source.config,
                             FolderConfig(sources.model, context, settings));
  }
  if (settings.has_value()) {
    absl::StrAppend(&source.config, EvaluationText(*settings));
    source.data_is_training =
        !settings->has_eval_data() && settings->has_train_data();
  }
  absl::StrAppend(&source.config, AdapterText(sources));
  return source;
}

absl::StatusOr<Generator> LoadToEvaluate(
    const EvaluationSource& source, std::unique_ptr<PluginHost> host,
    const std::vector<std::string>& overrides) {
  Generator generator;
  generator.host = std::move(host);
  CAPSTAN_RETURN_IF_ERROR(Load(source.folder, source.config, overrides,
                               WeightForm::kFloat32, &generator));
  return generator;
}

absl::StatusOr<std::unique_ptr<ChatTemplate>> FindChatTemplate(
    const std::string& name, const Tokenizer& tokenizer) {
  absl::StatusOr<std::unique_ptr<ChatTemplate>> found =
      name.empty() ? ChatTemplate::Recognise(tokenizer)
                   : ChatTemplate::Named(name);
  CAPSTAN_RETURN_IF_ERROR(found.status());
  CAPSTAN_RETURN_IF_ERROR((*found)->Check(tokenizer));
  return found;
}

std::vector<int64_t> AnswerStops(const ChatTemplate& chat_template,
                                 const Tokenizer& tokenizer) {
  std::vector<int64_t> stops;
  for (const absl::optional<int64_t> id :
       {tokenizer.IdOf(chat_template.end_of_turn()),
        absl::optional<int64_t>(tokenizer.special_ids().eos)}) {
    if (id.has_value() && *id >= 0) stops.push_back(*id);
  }
  return stops;
}

}  // namespace capstan
