// SPDX-License-Identifier: Apache-2.0
#include "desk/generate/model_flags.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/error_code.h"
#include "base/files.h"
#include "base/status.h"
#include "cluster/comm/create.h"
#include "host/plugins/plugin_host.h"
#include "host/storage/cache.h"
#include "inference/load/sample_logits.h"
#include "plugins/sdk/chat_template.h"
#include "plugins/sdk/lib/field_check.h"
#include "plugins/sdk/lib/generation_config.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/commands/command.h"
#include "trainer/commands/prepare.h"
#include "trainer/metrics/console.h"
#include "trainer/session/run_folders.h"

namespace capstan {
namespace {

const std::map<std::string, WeightForm>& WeightForms() {
  static const auto* const forms =
      new std::map<std::string, WeightForm>{{"stored", WeightForm::kStored},
                                            {"float32", WeightForm::kFloat32},
                                            {"bfloat16", WeightForm::kBfloat16},
                                            {"int8", WeightForm::kInt8}};
  return *forms;
}

}  // namespace

void AddModelFlag(Flags& flags, std::string* model) {
  flags
      .Add("--model", model,
           "A Hugging Face folder, a run's folder, or one of its checkpoints")
      .Type("FOLDER")
      .Required();
}

void AddAdapterFlags(Flags& flags, AdapterOptions* options) {
  flags
      .Add("--adapter", &options->folder,
           "A folder with a LoRA adapter for the model (PEFT's files)")
      .Type("FOLDER");
  flags.Add("--other_base", &options->other_base,
            "The adapter may have been trained on a base with other weights");
}

void AddWeightsFlag(Flags& flags, std::string* weights) {
  flags
      .Add(
          "--weights", weights,
          "How matrices are kept in memory: stored (as the folder has them, on "
          "CPUs in its files' own memory), float32, bfloat16 or, on CPUs, int8 "
          "(a scale a row)")
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

absl::StatusOr<Generator> LoadWithPlugins(
    const std::string& model, const AdapterOptions& adapter,
    const std::vector<std::string>& plugin_path,
    const std::vector<std::string>& overrides, WeightPlace place) {
  absl::StatusOr<Generator> generator = LoadGenerator(
      model, adapter, std::make_unique<PluginHost>(AllFromCaller(plugin_path)),
      RunFoldersHere(), overrides, place);
  if (generator.ok() && !generator->note.empty()) {
    std::cerr << "note: " << PrintableText(generator->note) << "\n";
  }
  return generator;
}

absl::StatusOr<WeightPlace> PlaceHere(const std::string& weights) {
  WeightPlace place;
  place.form = WeightFormOf(weights);
  CAPSTAN_ASSIGN_OR_RETURN(const int gpus, GpusOfRun());
  place.gpu = gpus > 0;
  return place;
}

absl::StatusOr<Generator> LoadToWrite(const SamplingOptions& options) {
  CAPSTAN_ASSIGN_OR_RETURN(const WeightPlace place, PlaceHere(options.weights));
  CAPSTAN_ASSIGN_OR_RETURN(
      Generator generator,
      LoadWithPlugins(options.model, options.adapter, options.plugin_path,
                      options.overrides, place));
  CAPSTAN_ASSIGN_OR_RETURN(generator.group,
                           CreateProcessGroup(RankInfo(), place.gpu ? 1 : 0));
  CAPSTAN_RETURN_IF_ERROR(generator.BindOn(generator.group->device()));
  return generator;
}

absl::StatusOr<std::string> FinishedModel(const std::string& path) {
  namespace fs = std::filesystem;
  CAPSTAN_ASSIGN_OR_RETURN(const std::string local,
                           LocalCopy(path, ModelOfRun));
  std::string folder = ModelFolder(FromCaller(local), RunFoldersHere());
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  if (!IsCheckpoint(folder)) return folder;
  // RUN/checkpoints/step-00000500
  const std::string run = fs::path(folder).parent_path().parent_path().string();
  return WithCode(
      absl::FailedPreconditionError(absl::StrCat(
          path, ": ", fs::path(folder).filename().string(),
          " is a checkpoint, from which a run goes on, and no model's folder; ",
          IsFolder(run + "/final")
              ? absl::StrCat("its run has one, final/: name the run, ", run)
              : absl::StrCat("a run has one, final/, once it has ended "
                             "(train.resume: AUTO goes on with ",
                             run, ")"))),
      "model/checkpoint");
}

absl::StatusOr<at::Tensor> FixedLogits(
    const std::string& folder, const std::string& adapter,
    const std::vector<std::string>& plugin_path, std::vector<int64_t>* tokens) {
  CAPSTAN_ASSIGN_OR_RETURN(
      const Generator generator,
      LoadWithPlugins(folder, {adapter, /*other_base=*/true}, plugin_path, {},
                      {WeightForm::kFloat32}));
  CAPSTAN_ASSIGN_OR_RETURN(*tokens, FixedTokens(*generator.model));
  return LogitsOf(*generator.model, *tokens);
}

namespace {

// What the samplers would refuse, once a prompt is shown and by their own
// names.
absl::Status CheckNumbers(const SamplingOptions& options) {
  const double temperature = options.temperature.value_or(1.0);
  CAPSTAN_RETURN_IF_ERROR(
      CheckField(temperature >= 0.0 && std::isfinite(temperature),
                 "--temperature", "0 or greater", temperature));
  const int64_t top_k = options.top_k.value_or(0);
  CAPSTAN_RETURN_IF_ERROR(
      CheckField(top_k >= 0, "--top_k", "0 or greater", top_k));
  const double top_p = options.top_p.value_or(1.0);
  CAPSTAN_RETURN_IF_ERROR(CheckField(top_p > 0.0 && top_p <= 1.0, "--top_p",
                                     "greater than 0 and at most 1", top_p));
  const double min_p = options.min_p.value_or(0.0);
  CAPSTAN_RETURN_IF_ERROR(CheckField(min_p >= 0.0 && min_p <= 1.0, "--min_p",
                                     "from 0 to 1", min_p));
  const double penalty = options.repetition_penalty.value_or(1.0);
  CAPSTAN_RETURN_IF_ERROR(CheckField(penalty > 0.0 && std::isfinite(penalty),
                                     "--repetition_penalty", "greater than 0",
                                     penalty));
  const int64_t ngram = options.no_repeat_ngram_size.value_or(0);
  return CheckField(ngram >= 0, "--no_repeat_ngram_size", "0 or greater",
                    ngram);
}

}  // namespace

absl::Status SamplingOptions::CheckSeed(const TokenModel& model) const {
  // Others may draw the order in which they write.
  if (seed == 0 || !likeliest() || !model.causal()) return absl::OkStatus();
  return FieldError("--seed",
                    absl::StrCat("is without effect beside ",
                                 greedy ? "--greedy" : "--temperature=0",
                                 ", which always takes the likeliest token: "
                                 "leave one of them out"));
}

absl::Status SamplingOptions::Check() const {
  CAPSTAN_RETURN_IF_ERROR(CheckNumbers(*this));
  if (max_new_tokens.has_value()) {
    CAPSTAN_RETURN_IF_ERROR(CheckField(*max_new_tokens > 0, "--max_new_tokens",
                                       "greater than 0", *max_new_tokens));
    CAPSTAN_RETURN_IF_ERROR(
        CheckField(*max_new_tokens <= kMostNewTokens, "--max_new_tokens",
                   absl::StrCat("at most ", kMostNewTokens), *max_new_tokens));
  }
  if (std::find(stop.begin(), stop.end(), "") != stop.end()) {
    return FieldError("--stop", "is empty: name a text, or leave it out");
  }
  const char* const drawing = DrawingFlag();
  if (!likeliest() || drawing == nullptr) return absl::OkStatus();
  return FieldError(drawing,
                    absl::StrCat("is without effect beside ",
                                 greedy ? "--greedy" : "--temperature=0",
                                 ", which always takes the likeliest token: "
                                 "leave one of them out"));
}

const char* SamplingOptions::DrawingFlag() const {
  if (temperature.has_value() && *temperature != 0.0) return "--temperature";
  if (top_k.has_value()) return "--top_k";
  if (top_p.has_value()) return "--top_p";
  return min_p.has_value() ? "--min_p" : nullptr;
}

SampleOptions SamplingOptions::Sampling(int64_t default_tokens) const {
  SampleOptions sample;
  sample.max_new_tokens = max_new_tokens.value_or(default_tokens);
  sample.greedy = greedy;
  sample.temperature = temperature;
  sample.top_k = top_k;
  sample.top_p = top_p;
  sample.min_p = min_p;
  sample.repetition_penalty = repetition_penalty;
  sample.no_repeat_ngram_size = no_repeat_ngram_size;
  sample.seed = seed;
  return sample;
}

TaskSettings SamplingOptions::Tasks() const {
  return {model,
          ChatTemplate::IsFile(chat_template) ? FromCaller(chat_template)
                                              : chat_template,
          chat_template_kwargs};
}

void AddTemplateFlags(Flags& flags, SamplingOptions* options) {
  flags.Add("--template", &options->chat_template,
            "How conversations are written: chatml, smollm2, llama3, gemma, "
            "llada, or a jinja file; default: as the tokenizer says");
  flags
      .Add("--chat_template_kwargs", &options->chat_template_kwargs,
           "Variables that the chat template sees: '{\"enable_thinking\": "
           "false}'")
      .Type("JSON");
}

void AddSamplingFlags(Flags& flags, SamplingOptions* options) {
  AddAdapterFlags(flags, &options->adapter);
  AddWeightsFlag(flags, &options->weights);
  flags.Add("--max_new_tokens", &options->max_new_tokens,
            "How many tokens to add");
  flags.Add("--greedy", &options->greedy, "Always the likeliest token");
  flags.Add("--temperature", &options->temperature, "Divides the logits");
  flags.Add("--top_k", &options->top_k,
            "Sample from the k likeliest tokens only");
  flags.Add("--top_p", &options->top_p,
            "Sample from the likeliest tokens of total probability p");
  flags.Add("--min_p", &options->min_p,
            "Sample from tokens with this share of the likeliest one's "
            "probability");
  flags.Add(
      "--repetition_penalty", &options->repetition_penalty,
      "Makes tokens less likely that the text has: divides their positive "
      "logits");
  flags.Add("--no_repeat_ngram_size", &options->no_repeat_ngram_size,
            "No run of so many tokens comes twice");
  flags
      .Add("--stop", &options->stop,
           "A text ends before this string; may be given several times")
      .Type("TEXT")
      .OneEach();
  flags.Add("--seed", &options->seed, "Of the random numbers");
  AddTemplateFlags(flags, options);
  AddSet(flags, &options->overrides,
         "Sets a field of the objective, which samples: for masked diffusion "
         "(LLaDA) objective.steps=64, objective.block_length=32, "
         "objective.remasking=RANDOM, objective.cfg_scale=1, "
         "objective.cache=DUAL; may be given several times");
  AddPluginPath(flags, &options->plugin_path);
}

void TellCutOff(const TokenModel& model) {
  std::cerr << "(the text ends at the model's " << model.max_positions()
            << " positions)\n";
}

absl::Status TellIgnoredSettings(Model& model) {
  const TokenModel* const tokens = model.token_model();
  if (tokens == nullptr || !tokens->causal()) return absl::OkStatus();
  CAPSTAN_ASSIGN_OR_RETURN(const GenerationConfig config,
                           GenerationConfigOf(*tokens));
  if (!config.ignored.empty()) {
    std::cerr << "note: the model's generation_config.json sets "
              << PrintableText(absl::StrJoin(config.ignored, ", "))
              << ", which can't be followed here\n";
  }
  return absl::OkStatus();
}

}  // namespace capstan
