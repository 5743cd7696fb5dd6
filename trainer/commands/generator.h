// SPDX-License-Identifier: Apache-2.0
//
// A trained model, ready to write: what generate, chat, merge and eval have in
// common.
#ifndef CAPSTAN_TRAINER_COMMANDS_GENERATOR_H_
#define CAPSTAN_TRAINER_COMMANDS_GENERATOR_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "plugins/sdk/chat_template.h"
#include "plugins/sdk/command.h"
#include "plugins/sdk/dataset.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/objective.h"
#include "trainer/config/load_config.h"
#include "trainer/plugin_host/plugin_host.h"

namespace capstan {

// The flags that generate and chat have in common.
struct SamplingOptions {
  std::string model;
  std::string adapter;  // empty: none
  absl::optional<int64_t> max_new_tokens;
  bool greedy = false;
  absl::optional<double> temperature;
  absl::optional<int64_t> top_k;
  absl::optional<double> top_p;
  uint64_t seed = 0;
  std::vector<std::string> overrides;  // of the model's config
  std::vector<std::string> plugin_path;

  absl::Status Check() const;
  // max_new_tokens is `default_tokens` where it isn't given.
  SampleOptions Sampling(int64_t default_tokens) const;
};

// --model of a trained model.
void AddModelFlag(Flags& flags, std::string* model);
void AddAdapterFlag(Flags& flags, std::string* adapter);
// All but --model.
void AddSamplingFlags(Flags& flags, SamplingOptions* options);

// A model with its weights, what samples from it, and its tokenizer if any.
struct Generator {
  std::unique_ptr<PluginHost> host;
  std::unique_ptr<Model> model;
  std::unique_ptr<Objective> objective;
  LoadedConfig loaded;                  // what they were made from
  std::unique_ptr<DatasetReader> data;  // owns the tokenizer of a checkpoint
  std::unique_ptr<Tokenizer> folder_tokenizer;
  absl::Status tokenizer_error;
  const Tokenizer* tokenizer = nullptr;
};

// A run's folder (runs/NAME, or one of its runs/NAME/TIME) stands for its final
// folder, else for its newest checkpoint; others for themselves.
std::string ModelFolder(const std::string& path);

// `model` is a Hugging Face folder, a run's folder (ModelFolder), a checkpoint,
// or a PEFT folder, whose base is then where its adapter_config.json says.
// `adapter`, if not empty, is a PEFT folder to add. `overrides` are applied to
// the config that a checkpoint holds, or that is made for a folder:
// "objective.steps=64". The weights are bound in float32. Relative folders are
// the caller's.
absl::StatusOr<Generator> LoadGenerator(
    const std::string& model, const std::string& adapter,
    const std::vector<std::string>& plugin_path,
    const std::vector<std::string>& overrides = {});

// What `trainer eval` makes a Generator of: any model, with what its run
// evaluates on.
struct EvaluationSource {
  std::string folder;  // of the weights
  std::string config;  // text for ParseConfig
  // The config's eval_data is what the run trains on: what that holds back is
  // to be evaluated.
  bool data_is_training = false;
};

// `model` and `adapter` as for LoadGenerator. Objective, data, seed and
// micro-batch are those of `run`, or, if it is null, of the run that made the
// model; the config has no eval_data if none did.
absl::StatusOr<EvaluationSource> FindToEvaluate(const std::string& model,
                                                const std::string& adapter,
                                                const RunConfig* run,
                                                const ConfigContext& context);

// The model and objective of a source's config, as overridden; no tokenizer.
// Takes over the context's host.
absl::StatusOr<Generator> LoadToEvaluate(
    const EvaluationSource& source, std::unique_ptr<PluginHost> host,
    const std::vector<std::string>& overrides);

// The template named `name`, or, if it is empty, the tokenizer's own, whose
// special tokens the tokenizer has.
absl::StatusOr<std::unique_ptr<ChatTemplate>> FindChatTemplate(
    const std::string& name, const Tokenizer& tokenizer);

// The tokens that end an answer: of the turn, and of a text.
std::vector<int64_t> AnswerStops(const ChatTemplate& chat_template,
                                 const Tokenizer& tokenizer);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_COMMANDS_GENERATOR_H_
