// SPDX-License-Identifier: Apache-2.0
//
// The flags by which generate, chat, merge and eval name a model, and by which
// generate and chat say how it writes.
#ifndef CAPSTAN_DESK_GENERATE_MODEL_FLAGS_H_
#define CAPSTAN_DESK_GENERATE_MODEL_FLAGS_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "inference/decode/prompt.h"
#include "inference/load/generator.h"
#include "plugins/sdk/command.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/objective.h"
#include "plugins/sdk/token_model.h"

namespace capstan {

// The most texts at once, and the most tokens of one: more is a slip.
constexpr int64_t kMostBatch = 1000000, kMostNewTokens = 1000000000;

// --model, a trained model.
void AddModelFlag(Flags& flags, std::string* model);
// --adapter and --other_base.
void AddAdapterFlags(Flags& flags, AdapterOptions* options);
// --weights, for WeightFormOf.
void AddWeightsFlag(Flags& flags, std::string* weights);
// "stored", "float32", "bfloat16" or "int8".
WeightForm WeightFormOf(const std::string& name);

// LoadGenerator with the plugins of --plugin_path. Prints its note.
absl::StatusOr<Generator> LoadWithPlugins(
    const std::string& model, const AdapterOptions& adapter,
    const std::vector<std::string>& plugin_path,
    const std::vector<std::string>& overrides, WeightPlace place);

// Where --weights has weights kept: on the GPUs that a run here uses, if any,
// with its errors (GpusOfRun).
absl::StatusOr<WeightPlace> PlaceHere(const std::string& weights);

// The folder that `path` leads to (ModelFolder), for commands that read a
// model's files. A checkpoint is an error: it has what a run needs to go on.
absl::StatusOr<std::string> FinishedModel(const std::string& path);

// LogitsOf FixedTokens, which it writes to `tokens`, by the model in `folder`
// with `adapter` ("": none), whose base the caller has compared; in float32.
absl::StatusOr<at::Tensor> FixedLogits(
    const std::string& folder, const std::string& adapter,
    const std::vector<std::string>& plugin_path, std::vector<int64_t>* tokens);

// Flags shared by generate and chat; serve has some of them.
struct SamplingOptions {
  std::string model;
  AdapterOptions adapter;
  absl::optional<int64_t> max_new_tokens;
  bool greedy = false;
  absl::optional<double> temperature;
  absl::optional<int64_t> top_k;
  absl::optional<double> top_p;
  absl::optional<double> min_p;
  absl::optional<double> repetition_penalty;
  absl::optional<int64_t> no_repeat_ngram_size;
  std::vector<std::string> stop;  // a text ends before the first of them
  uint64_t seed = 0;
  std::string weights = "stored";      // see WeightFormOf
  std::string chat_template;           // a name or a file
  std::string chat_template_kwargs;    // as TaskSettings
  std::vector<std::string> overrides;  // of the model's config
  std::vector<std::string> plugin_path;

  // An error for flags that contradict each other or can't be right.
  absl::Status Check() const;
  // An error for a seed that a text of `model` doesn't depend on.
  absl::Status CheckSeed(const TokenModel& model) const;
  // The first flag that is about random draws; null: none is given.
  const char* DrawingFlag() const;
  // --greedy, or a temperature of 0.
  bool likeliest() const { return greedy || temperature == 0.0; }
  // `default_tokens` is used if max_new_tokens isn't given.
  SampleOptions Sampling(int64_t default_tokens) const;
  TaskSettings Tasks() const;
};

// LoadWithPlugins for this process alone, on its first GPU if it has any.
absl::StatusOr<Generator> LoadToWrite(const SamplingOptions& options);

// --template and --chat_template_kwargs.
void AddTemplateFlags(Flags& flags, SamplingOptions* options);
// All but --model.
void AddSamplingFlags(Flags& flags, SamplingOptions* options);

// Says on standard error that a text ended as the model has no more positions.
void TellCutOff(const TokenModel& model);

// Says on standard error which of the model's own settings for sampling
// (generation_config.json) have no counterpart here.
absl::Status TellIgnoredSettings(Model& model);

}  // namespace capstan

#endif  // CAPSTAN_DESK_GENERATE_MODEL_FLAGS_H_
