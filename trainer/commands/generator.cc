// SPDX-License-Identifier: Apache-2.0
#include "trainer/commands/generator.h"

#include <ATen/ops/empty.h>

#include <cctype>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "plugins/sdk/status.h"
#include "plugins/sdk/tokenizer.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/commands/commands.h"
#include "trainer/config/latest_run.h"
#include "trainer/config/load_config.h"
#include "trainer/train/run_parts.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

// Which weights to load.
struct Sources {
  std::string model;    // a Hugging Face folder or a checkpoint
  std::string adapter;  // a PEFT folder, or ""
};

// A run's folder stands for its final folder, else for its newest checkpoint.
std::string ModelFolder(const fs::path& path) {
  const std::string folder = FollowLatestRun(path.string());
  if (fs::exists(fs::path(folder) / "final")) return folder + "/final";
  const std::string newest = NewestCheckpoint(folder);
  return newest.empty() ? folder : newest;
}

bool IsAdapter(const fs::path& folder) {
  return fs::exists(folder / "adapter_config.json") &&
         !fs::exists(folder / "config.json");
}

// The base that an adapter's folder names.
absl::StatusOr<std::string> BaseOf(const std::string& adapter) {
  std::ifstream file(adapter + "/adapter_config.json");
  const nlohmann::json json =
      nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  std::string base;
  if (json.is_object()) {
    const auto named = json.find("base_model_name_or_path");
    if (named != json.end() && named->is_string()) base = *named;
  }
  if (!base.empty() && fs::is_directory(base)) return base;
  return absl::NotFoundError(absl::StrCat(
      adapter, " is an adapter, and its base",
      base.empty() ? "" : absl::StrCat(", ", base, ","),
      " isn't a folder here: say --model=BASE --adapter=", adapter));
}

absl::StatusOr<Sources> Find(const std::string& caller,
                             const std::string& model,
                             const std::string& adapter) {
  Sources sources;
  sources.model = ModelFolder(fs::path(caller) / model);
  if (!fs::is_directory(sources.model)) {
    return absl::NotFoundError(
        absl::StrCat("--model=", model, ": no such folder"));
  }
  if (!adapter.empty()) {
    sources.adapter = ModelFolder(fs::path(caller) / adapter);
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

std::string ObjectiveSlot(const std::string& package) {
  return absl::StrCat("objective { [plugin/", package, ".Config] {} }\n");
}

// The objective of the run that made a folder, with its settings of sampling;
// "" if no run did, or its plugins aren't all here.
std::string ObjectiveOfRun(const std::string& folder,
                           const ConfigContext& context) {
  std::ifstream file(folder + "/capstan.json");
  const nlohmann::json json =
      nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("config") ||
      !json["config"].is_string()) {
    return "";
  }
  const absl::StatusOr<LoadedConfig> run =
      ParseConfig(json["config"], folder + "/capstan.json", context);
  if (!run.ok() || !run->config.has_objective()) return "";
  RunConfig objective;
  *objective.mutable_objective() = run->config.objective();
  return PrintConfig(objective);
}

// The config of a Hugging Face folder's model and objective. The model's
// package follows from its config.json: model_type "llama" is capstan.llama.
// The objective is the run's that made it, or else what the model names, or
// else architecture "LlamaForCausalLM" is sampled by capstan.causal_lm.
absl::StatusOr<std::string> FolderConfig(const std::string& folder,
                                         const ConfigContext& context) {
  const std::string path = folder + "/config.json";
  std::ifstream file(path);
  const nlohmann::json json =
      nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
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
  const std::string slot = absl::StrCat(
      "model { [plugin/capstan.", model_type,
      ".Config] { pretrained: ", InQuotes(fs::absolute(folder).string()),
      " } }\n");
  CAPSTAN_ASSIGN_OR_RETURN(const LoadedConfig loaded,
                           ParseConfig(slot, folder, context));
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model,
                           CreateModel(loaded, *context.host));
  const TokenModel* const tokens = model->token_model();
  if (tokens == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder, " is no model of texts: it can't write any"));
  }
  const std::string objective = ObjectiveOfRun(folder, context);
  if (!objective.empty()) return slot + objective;
  if (!tokens->sampling_objective().empty()) {
    return slot + ObjectiveSlot(tokens->sampling_objective());
  }
  const size_t split = architecture.find("For");
  if (split == std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": no architectures in it"));
  }
  return slot + ObjectiveSlot(absl::StrCat(
                    "capstan.", SnakeCase(architecture.substr(split + 3))));
}

template <typename Base>
absl::StatusOr<std::unique_ptr<Base>> Create(const google::protobuf::Any& any,
                                             PluginCategory category,
                                             PluginHost& host) {
  return host.Create<Base>(TypeOf(any), category, any.value());
}

// Binds float32 tensors with the model's own initial values (a folder's
// weights) or a checkpoint's.
absl::Status BindWeights(const std::string& folder, bool is_checkpoint,
                         Model& model) {
  const std::vector<ParameterSpec>& specs = model.parameters();
  const auto initial = [&](int index, uint64_t seed, float* out) {
    return model.InitialValue(index, seed, 0, specs[index].numel(), out);
  };
  std::vector<at::Tensor> weights;
  if (is_checkpoint) {
    CAPSTAN_ASSIGN_OR_RETURN(weights,
                             CheckpointWeights(folder, specs, initial));
  } else {
    for (size_t i = 0; i < specs.size(); ++i) {
      at::Tensor weight = at::empty(specs[i].shape, at::kFloat);
      CAPSTAN_RETURN_IF_ERROR(initial(static_cast<int>(i), /*seed=*/0,
                                      weight.mutable_data_ptr<float>()));
      weights.push_back(std::move(weight));
    }
  }
  model.Bind(std::move(weights));
  return absl::OkStatus();
}

// The tokenizer of an adapter, or else of its base.
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

}  // namespace

absl::StatusOr<Generator> LoadGenerator(
    const std::string& model, const std::string& adapter,
    const std::vector<std::string>& plugin_path,
    const std::vector<std::string>& overrides) {
  Generator generator;
  generator.host = std::make_unique<PluginHost>(FromCaller(plugin_path));
  const ConfigContext context = DefaultConfigContext(generator.host.get());
  CAPSTAN_ASSIGN_OR_RETURN(const Sources sources,
                           Find(context.caller_folder, model, adapter));
  const bool is_checkpoint = IsCheckpoint(sources.model);
  std::string text;
  if (is_checkpoint) {
    CAPSTAN_ASSIGN_OR_RETURN(text, CheckpointConfig(sources.model));
  } else {
    CAPSTAN_ASSIGN_OR_RETURN(text, FolderConfig(sources.model, context));
  }
  if (!sources.adapter.empty()) {
    absl::StrAppend(&text, "adapter { lora { pretrained: ",
                    InQuotes(fs::absolute(sources.adapter).string()), " } }\n");
  }
  CAPSTAN_ASSIGN_OR_RETURN(
      const LoadedConfig loaded,
      ParseConfig(text, sources.model, context, overrides));
  CAPSTAN_ASSIGN_OR_RETURN(generator.model,
                           CreateModel(loaded, *generator.host));
  CAPSTAN_ASSIGN_OR_RETURN(
      generator.objective,
      Create<Objective>(loaded.config.objective(), PluginCategory::kObjective,
                        *generator.host));
  CAPSTAN_RETURN_IF_ERROR(
      BindWeights(sources.model, is_checkpoint, *generator.model));
  if (is_checkpoint) {
    absl::StatusOr<std::unique_ptr<DatasetReader>> data =
        Create<DatasetReader>(loaded.config.train_data(),
                              PluginCategory::kDatasetReader, *generator.host);
    generator.tokenizer_error = data.status();
    if (data.ok()) generator.data = *std::move(data);
    if (generator.data) generator.tokenizer = generator.data->tokenizer();
  } else {
    FindTokenizer(sources, &generator);
  }
  return generator;
}

}  // namespace capstan
