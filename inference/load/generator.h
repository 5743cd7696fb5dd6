// SPDX-License-Identifier: Apache-2.0
//
// Loads a trained model, to let it write or to evaluate it.
#ifndef CAPSTAN_INFERENCE_LOAD_GENERATOR_H_
#define CAPSTAN_INFERENCE_LOAD_GENERATOR_H_

#include <ATen/core/Tensor.h>
#include <google/protobuf/any.pb.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "base/files.h"
#include "base/status.h"
#include "host/config/load_config.h"
#include "host/plugins/plugin_host.h"
#include "inference/load/run_folders.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/objective.h"
#include "plugins/sdk/process_group.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan {

// An adapter to add to a model.
struct AdapterOptions {
  std::string folder;       // PEFT's; empty: none
  bool other_base = false;  // may have been trained on other weights
};

// In which form a model's weights are kept, and where.
struct WeightPlace {
  WeightForm form = WeightForm::kStored;
  // Load* leaves them to Generator::BindOn, as a process whose children use
  // CUDA must not have used it.
  bool gpu = false;
};

// A model with its weights, its sampler and its tokenizer, if any.
struct Generator {
  std::unique_ptr<PluginHost> host;
  std::unique_ptr<Model> model;
  std::unique_ptr<Objective> objective;
  LoadedConfig loaded;  // what they were made from
  std::unique_ptr<const Tokenizer> tokenizer;
  absl::Status tokenizer_error;
  std::string note;    // for the user about an adapter's base; may be ""
  std::string folder;  // of the weights
  // Of the run that trained the model, or the adapter; empty: isn't known.
  google::protobuf::Any train_data;
  const RunFolders* runs = nullptr;  // who reads it
  WeightPlace place;
  // Which CUDA was set up with, where this process alone uses the model.
  std::shared_ptr<ProcessGroup> group;
  std::string arithmetic = "float32 on CPUs";  // of its activations, for users

  // If place.gpu, binds the weights in the memory of `device`, a GPU, all in
  // one dtype: place.form, of which kStored is what most of the values in the
  // model's folder have, float32 without a folder. RESOURCE_EXHAUSTED, before
  // they are read, if they need more than the GPU has free.
  absl::Status BindOn(at::Device device);

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
std::string ModelFolder(const std::string& path, const RunFolders& runs);

// The package of the plugin that opens a Hugging Face folder: by the model_type
// in its config.json. Errors name the file.
absl::StatusOr<std::string> ReaderOfFolder(const std::string& folder,
                                           const PluginHost& host);

// What LoadGenerator loads weights from.
struct ModelSources {
  std::string model;    // a Hugging Face folder or a checkpoint
  std::string adapter;  // a PEFT folder, or ""
  std::string note;     // for the user about the adapter's base, or ""
};

// Of the same `model` and `adapter`, with the same errors.
absl::StatusOr<ModelSources> FindSources(const std::string& model,
                                         const AdapterOptions& adapter,
                                         const ConfigContext& context,
                                         const RunFolders& runs);

// `model` is a Hugging Face folder, a run's folder (ModelFolder), a checkpoint,
// or a PEFT folder, whose adapter_config.json then names the base. `adapter`,
// if not empty, is a PEFT folder to add. An adapter of other base weights, or a
// checkpoint of other frozen ones, is an error (CheckBaseWeights,
// CheckFrozenWeights). `overrides` ("objective.steps=64")
// apply to the checkpoint's config, or to the one made for a folder. On the CPU
// weights are bound in `place.form` where the model can (InferenceWeights),
// else in float32; those of a folder that are so in its files are mapped, not
// copied. Relative folders are resolved against the caller's; `runs` outlives
// the generator. Errors name the flags --model, --adapter and --weights.
absl::StatusOr<Generator> LoadGenerator(
    const std::string& model, const AdapterOptions& adapter,
    std::unique_ptr<PluginHost> host, const RunFolders& runs,
    const std::vector<std::string>& overrides = {}, WeightPlace place = {});

// Input of `trainer eval`: any model, with its run's evaluation data.
struct EvaluationSource {
  std::string folder;       // of the weights
  bool other_base = false;  // as in AdapterOptions
  std::string note;         // as in Generator
  // Where the model's tokenizer is looked for, in this order.
  std::vector<std::string> tokenizer_folders;
  std::string config;  // text for ParseConfig
  // The config's eval_data is the training data; evaluate its held-out part.
  bool data_is_training = false;
};

// `model` and `adapter` are as for LoadGenerator. Objective, data, seed and
// micro-batch come from `run`, or, if null, from the run that made the model;
// if there is none, the config has no eval_data. The tokenizer that the latter
// names is left out if the model's folders have one.
absl::StatusOr<EvaluationSource> FindToEvaluate(const std::string& model,
                                                const AdapterOptions& adapter,
                                                const RunConfig* run,
                                                const ConfigContext& context,
                                                const RunFolders& runs);

// The model, with weights in `place`, and objective of a source's config with
// overrides; no tokenizer. Takes ownership of the context's host.
absl::StatusOr<Generator> LoadToEvaluate(
    const EvaluationSource& source, std::unique_ptr<PluginHost> host,
    const RunFolders& runs, const std::vector<std::string>& overrides,
    WeightPlace place);

}  // namespace capstan

#endif  // CAPSTAN_INFERENCE_LOAD_GENERATOR_H_
