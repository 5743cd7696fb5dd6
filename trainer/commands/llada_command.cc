// SPDX-License-Identifier: Apache-2.0
//
// llada and llada-data: for those who have the flags of LLaDA's Python scripts
// in scripts of their own. A translation: what the flags mean is written down
// here as a config, which then runs as any other.
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "base/machine.h"
#include "base/status.h"
#include "datasets/llada_windows/window_data.h"
#include "plugins/sdk/tokenizer.h"
#include "trainer/commands/commands.h"
#include "trainer/commands/generator.h"
#include "trainer/config/hub_name.h"
#include "trainer/launcher/launcher.h"
#include "trainer/launcher/rank_info.h"
#include "trainer/metrics/number_text.h"
#include "trainer/process_group/create.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

// What the scripts do beside their flags: the mean over the masked tokens,
// AdamW with decay 0.01 of all weights, gradients clipped to norm 1, a tenth of
// the steps warm-up and then half a cosine, an evaluation each epoch, a
// checkpoint of the best and of each fifth epoch. In what is not a matter of
// results it is made to fit the machine: sharded weights, activations computed
// again in backward.
constexpr char kRecipe[] = R"(
name: "llada"
output_dir: "$0"
model { [plugin/capstan.llada.Config] { pretrained: "$1" } }
objective { [plugin/capstan.masked_diffusion.Config] { loss: MASKED_MEAN } }
train_data {
  [plugin/capstan.llada_windows.Config] { folder: "$2" shuffle: true }
}
strategy { [plugin/capstan.fsdp.Config] {} }
precision { [plugin/capstan.$3.Config] {} }
optimizer {
  [plugin/capstan.adamw.Config] { learning_rate: $4 weight_decay: 0.01 }
}
schedule { kind: COSINE warmup_ratio: 0.1 }
batch { micro_batch_size: $5 }
train {
  max_epochs: $6
  seed: 42
  max_grad_norm: 1.0
  eval_every: $7
  save_every: $8
  keep_best: true
  resume: $9
  activation_checkpointing: EVERY_UNIT
}
)";

constexpr int64_t kSaveEveryEpochs = 5;
constexpr int kCpuProcesses = 2;

// Ranks of the run, and what says so in its config: nothing where the
// environment does.
struct Ranks {
  int count = kCpuProcesses;
  std::string launch;
};

absl::StatusOr<Ranks> RanksOfRun() {
  CAPSTAN_ASSIGN_OR_RETURN(const absl::optional<RankInfo> environment,
                           RankFromEnvironment());
  Ranks ranks;
  if (environment.has_value()) {
    ranks.count = environment->world_size;
    return ranks;
  }
  const int gpus = HasGpuParts() ? CountGpus() : 0;
  if (gpus > 0) ranks.count = gpus;
  ranks.launch = absl::StrCat("launch { processes: ", ranks.count, " }\n");
  return ranks;
}

bool SameTokens(const Tokenizer& a, const Tokenizer& b) {
  if (a.vocab_size() != b.vocab_size()) return false;
  for (int64_t id = 0; id < a.vocab_size(); ++id) {
    if (a.Decode({id}) != b.Decode({id})) return false;
  }
  return true;
}

absl::Status CheckModel(const LladaOptions& options,
                        const std::string& folder) {
  if (fs::is_directory(folder)) return absl::OkStatus();
  return FieldError(
      "--model_name",
      absl::StrCat(options.model_name, " is not a folder",
                   HubDownloadHint(options.model_name, "--model_name")));
}

// Whether ids of the data mean to the model what they mean in the data.
absl::Status CheckTokens(const LladaOptions& options, const std::string& model,
                         const std::string& folder,
                         const llada_windows::WindowData& data) {
  const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      LoadTokenizer(model);
  // A model without one: its vocabulary's size is all there is to check.
  if (absl::IsNotFound(tokenizer.status())) return absl::OkStatus();
  CAPSTAN_RETURN_IF_ERROR(tokenizer.status());
  if (SameTokens(**tokenizer, *data.tokenizer)) return absl::OkStatus();
  return FieldError(
      "--data_dir",
      absl::StrCat(
          options.data_dir, " holds ids of ",
          llada_windows::HasCharacters(folder) ? "characters"
                                               : "another tokenizer",
          ", which mean something else in ", options.model_name,
          "'s own vocabulary: write the text in its tokens, trainer llada-data "
          "--text=",
          options.data_dir, "/shakespeare_raw.txt --tokenizer=",
          options.model_name, " --output=FOLDER, and say --data_dir=FOLDER"));
}

// The scripts' --fp16 is their default. Ours is 16 bits where they pay.
std::string PrecisionOf(const LladaOptions& options) {
  if (!options.fp16.has_value()) return "auto";
  return *options.fp16 ? "fp16" : "fp32";
}

absl::StatusOr<std::string> ConfigText(const LladaOptions& options) {
  if (options.batch_size < 1) {
    return FieldError("--batch_size", absl::StrCat("must be at least 1, is ",
                                                   options.batch_size));
  }
  if (options.epochs < 1) {
    return FieldError("--epochs",
                      absl::StrCat("must be at least 1, is ", options.epochs));
  }
  const std::string folder = FromCaller({options.data_dir})[0];
  const std::string model = ModelFolder(FromCaller({options.model_name})[0]);
  absl::StatusOr<llada_windows::WindowData> data =
      llada_windows::OpenNpyFolder(folder);
  if (!data.ok()) return FieldError("--data_dir", data.status().message());
  if (data->validation == nullptr) {
    return FieldError(
        "--data_dir",
        absl::StrCat(options.data_dir, " has no windows for validation"));
  }
  CAPSTAN_RETURN_IF_ERROR(CheckModel(options, model));
  CAPSTAN_RETURN_IF_ERROR(CheckTokens(options, model, folder, *data));
  CAPSTAN_ASSIGN_OR_RETURN(const Ranks ranks, RanksOfRun());
  const int64_t global = options.batch_size * ranks.count;
  const int64_t epoch = (data->train->size() + global - 1) / global;
  const std::string config = absl::Substitute(
      kRecipe, absl::CEscape(FromCaller({options.save_dir})[0]),
      absl::CEscape(model), absl::CEscape(folder), PrecisionOf(options),
      options.learning_rate, options.batch_size, options.epochs, epoch,
      kSaveEveryEpochs * epoch, options.resume ? "AUTO" : "NEVER");
  return config + ranks.launch;
}

absl::Status WriteData(const LladaDataOptions& options) {
  llada_windows::TextWindowsSpec spec;
  spec.path = FromCaller({options.text})[0];
  if (!options.tokenizer.empty()) {
    spec.tokenizer_folder = FromCaller({options.tokenizer})[0];
  }
  spec.sequence_length = options.sequence_length;
  spec.stride = options.stride;
  spec.validation_fraction = options.validation_fraction;
  if (options.validation_fraction == 0) {
    return FieldError("--validation_fraction", "must be greater than 0");
  }
  CAPSTAN_ASSIGN_OR_RETURN(const llada_windows::WindowData data,
                           llada_windows::OpenTextWindows(spec));
  const std::string folder = FromCaller({options.output})[0];
  CAPSTAN_RETURN_IF_ERROR(
      llada_windows::WriteNpyFolder(data, spec.path, folder));
  std::cout << folder << ": " << WithCommas(data.train->size())
            << " windows to train on, " << WithCommas(data.validation->size())
            << " to validate, of " << WithCommas(data.sequence_length)
            << (options.tokenizer.empty() ? " characters" : " tokens")
            << "; vocabulary " << WithCommas(data.tokenizer->vocab_size())
            << "\n";
  return absl::OkStatus();
}

}  // namespace

int LladaCommand(const LladaOptions& options) {
  RunOptions run = options.run;
  try {
    absl::StatusOr<std::string> text = ConfigText(options);
    if (!text.ok()) return Fail(text.status());
    run.config_text = *std::move(text);
  } catch (...) {
    return Fail(CurrentExceptionToStatus());
  }
  return TrainCommand(run);
}

int LladaDataCommand(const LladaDataOptions& options) {
  absl::Status status;
  try {
    status = WriteData(options);
  } catch (...) {
    status = CurrentExceptionToStatus();
  }
  return status.ok() ? 0 : Fail(status);
}

}  // namespace capstan
