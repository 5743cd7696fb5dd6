// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <cctype>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "plugins/sdk/objective.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/commands/commands.h"
#include "trainer/config/load_config.h"
#include "trainer/data/folder_tokenizer.h"
#include "trainer/launcher/launcher.h"
#include "trainer/train/run_parts.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

// A model with its weights, what samples from it, and its tokenizer if any.
struct Generator {
  std::unique_ptr<PluginHost> host;
  std::unique_ptr<Model> model;
  std::unique_ptr<Objective> objective;
  std::unique_ptr<DatasetReader> data;  // owns the tokenizer of a checkpoint
  std::unique_ptr<Tokenizer> folder_tokenizer;
  absl::Status tokenizer_error;
  const Tokenizer* tokenizer = nullptr;
};

// A run's folder stands for its final folder, else for its newest checkpoint.
std::string ModelFolder(const std::string& folder) {
  if (fs::exists(fs::path(folder) / "final")) return folder + "/final";
  const std::string newest = NewestCheckpoint(folder);
  return newest.empty() ? folder : newest;
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

// The config of a Hugging Face folder's model and objective. Their packages
// follow from its config.json: model_type "llama" is capstan.llama, and
// architecture "LlamaForCausalLM" is sampled by capstan.causal_lm.
absl::StatusOr<std::string> FolderConfig(const std::string& folder) {
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
  const size_t split = architecture.find("For");
  if (!json.contains("model_type") || !json["model_type"].is_string() ||
      split == std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": no model_type and architectures in it"));
  }
  const std::string model_type = json["model_type"];
  return absl::StrCat(
      "model { [plugin/capstan.", model_type, ".Config] { pretrained: \"",
      fs::absolute(folder).string(), "\" } }\nobjective { [plugin/capstan.",
      SnakeCase(architecture.substr(split + 3)), ".Config] {} }\n");
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

absl::StatusOr<Generator> LoadGenerator(const GenerateOptions& options) {
  Generator generator;
  generator.host =
      std::make_unique<PluginHost>(FromCaller(options.plugin_path));
  const ConfigContext context = DefaultConfigContext(generator.host.get());
  const std::string folder =
      ModelFolder((fs::path(context.caller_folder) / options.model).string());
  if (!fs::is_directory(folder)) {
    return absl::NotFoundError(
        absl::StrCat("--model=", options.model, ": no such folder"));
  }
  const bool is_checkpoint = IsCheckpoint(folder);
  std::string text;
  if (is_checkpoint) {
    CAPSTAN_ASSIGN_OR_RETURN(text, CheckpointConfig(folder));
  } else {
    CAPSTAN_ASSIGN_OR_RETURN(text, FolderConfig(folder));
  }
  CAPSTAN_ASSIGN_OR_RETURN(const LoadedConfig loaded,
                           ParseConfig(text, folder, context));
  CAPSTAN_ASSIGN_OR_RETURN(generator.model,
                           CreateModel(loaded, *generator.host));
  CAPSTAN_ASSIGN_OR_RETURN(
      generator.objective,
      Create<Objective>(loaded.config.objective(), PluginCategory::kObjective,
                        *generator.host));
  CAPSTAN_RETURN_IF_ERROR(BindWeights(folder, is_checkpoint, *generator.model));
  if (is_checkpoint) {
    absl::StatusOr<std::unique_ptr<DatasetReader>> data =
        Create<DatasetReader>(loaded.config.train_data(),
                              PluginCategory::kDatasetReader, *generator.host);
    generator.tokenizer_error = data.status();
    if (data.ok()) generator.data = *std::move(data);
    if (generator.data) generator.tokenizer = generator.data->tokenizer();
  } else {
    absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
        LoadFolderTokenizer(folder);
    generator.tokenizer_error = tokenizer.status();
    if (tokenizer.ok()) generator.folder_tokenizer = *std::move(tokenizer);
    generator.tokenizer = generator.folder_tokenizer.get();
  }
  return generator;
}

absl::StatusOr<std::vector<int64_t>> PromptIds(const GenerateOptions& options,
                                               const Generator& generator) {
  if (options.prompt.has_value() == !options.prompt_ids.empty()) {
    return absl::InvalidArgumentError(
        "give either --prompt=TEXT or --prompt_ids=1,2,3");
  }
  if (!options.prompt_ids.empty()) return options.prompt_ids;
  if (generator.tokenizer == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--model=", options.model, " has no tokenizer for --prompt (",
        generator.tokenizer_error.message(), "); use --prompt_ids=1,2,3"));
  }
  std::vector<int64_t> ids = generator.tokenizer->Encode(*options.prompt);
  if (ids.empty()) {
    return absl::InvalidArgumentError("--prompt is empty");
  }
  return ids;
}

absl::Status Generate(const GenerateOptions& options) {
  if (options.max_new_tokens.has_value() && *options.max_new_tokens < 1) {
    return FieldError(
        "--max_new_tokens",
        absl::StrCat("must be greater than 0, is ", *options.max_new_tokens));
  }
  at::set_num_threads(AvailableCores());
  at::NoGradGuard no_grad;
  CAPSTAN_ASSIGN_OR_RETURN(Generator generator, LoadGenerator(options));
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<int64_t> prompt,
                           PromptIds(options, generator));
  SampleOptions sample;
  sample.max_new_tokens = options.max_new_tokens.value_or(0);
  sample.greedy = options.greedy;
  sample.temperature = options.temperature;
  sample.top_k = options.top_k;
  sample.top_p = options.top_p;
  sample.seed = options.seed;
  const bool as_text = options.prompt_ids.empty();
  if (as_text) {
    std::cout << *options.prompt << std::flush;
    sample.on_token = [&generator](int64_t token) {
      std::cout << generator.tokenizer->Decode(absl::MakeSpan(&token, 1))
                << std::flush;
    };
  }
  PlainRunner runner;
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::vector<int64_t> ids,
      generator.objective->Sample(*generator.model, prompt, sample, runner));
  if (!as_text) std::cout << absl::StrJoin(ids, ",");
  std::cout << std::endl;
  return absl::OkStatus();
}

}  // namespace

int GenerateCommand(const GenerateOptions& options) {
  absl::Status status;
  try {
    status = Generate(options);
  } catch (...) {
    status = CurrentExceptionToStatus();
  }
  return status.ok() ? 0 : Fail(status);
}

}  // namespace capstan
