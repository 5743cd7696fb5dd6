// SPDX-License-Identifier: Apache-2.0
//
// Loads a trained model for generate, chat, merge and eval.
#ifndef CAPSTAN_TRAINER_COMMANDS_GENERATOR_H_
#define CAPSTAN_TRAINER_COMMANDS_GENERATOR_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "base/files.h"
#include "base/status.h"
#include "plugins/sdk/chat_template.h"
#include "plugins/sdk/command.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/inference_weights.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/objective.h"
#include "trainer/config/load_config.h"
#include "trainer/plugin_host/plugin_host.h"

namespace capstan {

// Flags shared by generate and chat.
struct SamplingOptions {
  std::string model;
  std::string adapter;  // empty: none
  absl::optional<int64_t> max_new_tokens;
  bool greedy = false;
  absl::optional<double> temperature;
  absl::optional<int64_t> top_k;
  absl::optional<double> top_p;
  uint64_t seed = 0;
  std::string weights = "stored";      // see WeightFormOf
  std::vector<std::string> overrides;  // of the model's config
  std::vector<std::string> plugin_path;

  absl::Status Check() const;
  // `default_tokens` is used if max_new_tokens isn't given.
  SampleOptions Sampling(int64_t default_tokens) const;
};

// --model, a trained model.
void AddModelFlag(Flags& flags, std::string* model);
void AddAdapterFlag(Flags& flags, std::string* adapter);
// --weights, for WeightFormOf.
void AddWeightsFlag(Flags& flags, std::string* weights);
// "stored", "float32", "bfloat16" or "int8".
WeightForm WeightFormOf(const std::string& name);
// All but --model.
void AddSamplingFlags(Flags& flags, SamplingOptions* options);

// A model with its weights, its sampler and its tokenizer, if any.
struct Generator {
  std::unique_ptr<PluginHost> host;
  std::unique_ptr<Model> model;
  std::unique_ptr<Objective> objective;
  LoadedConfig loaded;                  // what they were made from
  std::unique_ptr<DatasetReader> data;  // owns a checkpoint's tokenizer
  std::unique_ptr<Tokenizer> folder_tokenizer;
  absl::Status tokenizer_error;
  const Tokenizer* tokenizer = nullptr;

  // Objective::Sample.
  absl::StatusOr<std::vector<int64_t>> Sample(
      const std::vector<int64_t>& prompt, const SampleOptions& options) const {
    PlainRunner runner;
    absl::StatusOr<std::vector<int64_t>> text =
        objective->Sample(*model, prompt, options, runner);
    // Weights may lie in files that change.
    CAPSTAN_RETURN_IF_ERROR(MappedFile::CheckAll());
    return text;
  }
};

// A run's folder (runs/NAME or runs/NAME/TIME) maps to its final folder, else
// to its newest checkpoint; other folders to themselves.
std::string ModelFolder(const std::string& path);

// `model` is a Hugging Face folder, a run's folder (ModelFolder), a checkpoint,
// or a PEFT folder, whose adapter_config.json then names the base. `adapter`,
// if not empty, is a PEFT folder to add. `overrides` ("objective.steps=64")
// apply to the checkpoint's config, or to the one made for a folder. Weights
// are bound in `weights` where the model can (InferenceWeights), else in
// float32; those of a folder that are so in its files are mapped, not copied.
// Relative folders are resolved against the caller's.
absl::StatusOr<Generator> LoadGenerator(
    const std::string& model, const std::string& adapter,
    const std::vector<std::string>& plugin_path,
    const std::vector<std::string>& overrides = {},
    WeightForm weights = WeightForm::kStored);

// Input of `trainer eval`: any model, with its run's evaluation data.
struct EvaluationSource {
  std::string folder;  // of the weights
  std::string config;  // text for ParseConfig
  // The config's eval_data is the training data; evaluate its held-out part.
  bool data_is_training = false;
};

// `model` and `adapter` are as for LoadGenerator. Objective, data, seed and
// micro-batch come from `run`, or, if null, from the run that made the model;
// if there is none, the config has no eval_data.
absl::StatusOr<EvaluationSource> FindToEvaluate(const std::string& model,
                                                const std::string& adapter,
                                                const RunConfig* run,
                                                const ConfigContext& context);

// The model and objective of a source's config with overrides; no tokenizer.
// Takes ownership of the context's host.
absl::StatusOr<Generator> LoadToEvaluate(
    const EvaluationSource& source, std::unique_ptr<PluginHost> host,
    const std::vector<std::string>& overrides);

// The template `name`, or, if empty, the tokenizer's own. Its special tokens
// must be in the tokenizer.
absl::StatusOr<std::unique_ptr<ChatTemplate>> FindChatTemplate(
    const std::string& name, const Tokenizer& tokenizer);

// The tokens that end an answer: end of turn and end of text.
std::vector<int64_t> AnswerStops(const ChatTemplate& chat_template,
                                 const Tokenizer& tokenizer);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_COMMANDS_GENERATOR_H_
