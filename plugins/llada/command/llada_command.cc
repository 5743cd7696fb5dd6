// SPDX-License-Identifier: Apache-2.0
//
// `trainer llada`, for scripts written for the flags of LLaDA's Python script:
// translates them into a config and runs it.
#include <memory>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"
#include "base/files.h"
#include "base/status.h"
#include "plugins/llada/windows/window_data.h"
#include "plugins/sdk/command.h"
#include "plugins/sdk/lib/field_check.h"
#include "plugins/sdk/lib/token_difference.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan {
namespace {

// The scripts' fixed settings: mean over the masked tokens, AdamW with decay
// 0.01 on all weights, gradients clipped to norm 1, OneCycleLR over the run's
// steps with a tenth of them to rise, an evaluation per epoch, checkpoints of
// the best and of each fifth epoch. Settings without effect on results suit the
// machine: sharded weights, activation checkpointing.
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
schedule { kind: ONE_CYCLE warmup_ratio: 0.1 }
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

class LladaCommand : public Command {
 public:
  static absl::StatusOr<std::unique_ptr<LladaCommand>> Create(const NoConfig&) {
    return std::make_unique<LladaCommand>();
  }

  void AddFlags(Flags& flags) override {
    flags
        .Add("--data_dir", &data_dir_,
             "A folder with train_data.npy, val_data.npy, metadata.json and "
             "vocab.json (`trainer llada-data` writes such)")
        .Type("FOLDER")
        .Required();
    flags
        .Add("--model_name", &model_name_,
             "The folder of a LLaDA, downloaded or of a run")
        .Type("FOLDER")
        .ShowDefault();
    flags.Add("--batch_size", &batch_size_, "Windows of each device")
        .ShowDefault();
    flags.Add("--epochs", &epochs_, "").ShowDefault();
    flags.Add("--learning_rate", &learning_rate_, "").ShowDefault();
    flags.Add("--save_dir", &save_dir_, "Where the run goes")
        .Type("FOLDER")
        .ShowDefault();
    flags.Add(
        "--fp16", &fp16_,
        "Compute in float16; default: bfloat16 or float16 where the device is "
        "fast in it, else float32");
    flags.Add("--no_fp16", &no_fp16_, "Compute in float32");
    flags.Add(
        "--resume", &resume_,
        "Continue from the newest checkpoint in save_dir, if there is one");
    flags.AddRunChanges();
  }

  absl::StatusOr<int> Run(CommandHost& host) override {
    CAPSTAN_ASSIGN_OR_RETURN(const std::string config, ConfigText(host));
    return host.Train(config);
  }

 private:
  absl::StatusOr<std::string> ConfigText(const CommandHost& host) const {
    // As many as batch.micro_batch_size may be.
    constexpr int64_t kMostWindows = int64_t{1} << 31;
    CAPSTAN_RETURN_IF_ERROR(CheckField(
        batch_size_ >= 1 && batch_size_ <= kMostWindows, "--batch_size",
        absl::StrCat("from 1 to ", kMostWindows), batch_size_));
    CAPSTAN_RETURN_IF_ERROR(
        CheckField(epochs_ >= 1, "--epochs", "at least 1", epochs_));
    if (fp16_ && no_fp16_) {
      return FieldError("--no_fp16",
                        "is the contrary of --fp16: give one of them");
    }
    const std::string folder = host.Path(data_dir_);
    const std::string model = host.ModelFolder(host.Path(model_name_));
    absl::StatusOr<llada_windows::WindowData> data =
        llada_windows::OpenNpyFolder(folder);
    if (!data.ok()) return FieldError("--data_dir", data.status().message());
    if (data->validation == nullptr) {
      return FieldError(
          "--data_dir",
          absl::StrCat(data_dir_, " has no windows for validation"));
    }
    CAPSTAN_RETURN_IF_ERROR(CheckModel(host, model));
    CAPSTAN_RETURN_IF_ERROR(CheckTokens(model, folder, *data));
    CAPSTAN_ASSIGN_OR_RETURN(const CommandHost::Ranks ranks, host.RanksOfRun());
    const int64_t global = batch_size_ * ranks.count;
    const int64_t epoch = (data->train->size() + global - 1) / global;
    std::string config = absl::Substitute(
        kRecipe, absl::CEscape(host.Path(save_dir_)), absl::CEscape(model),
        absl::CEscape(folder), Precision(), learning_rate_, batch_size_,
        epochs_, epoch, kSaveEveryEpochs * epoch, resume_ ? "AUTO" : "NEVER");
    // Left out if the environment sets the number of ranks.
    if (!ranks.from_environment) {
      absl::StrAppend(&config, "launch { processes: ", ranks.count, " }\n");
    }
    return config;
  }

  absl::Status CheckModel(const CommandHost& host,
                          const std::string& folder) const {
    if (IsFolder(folder)) return absl::OkStatus();
    return FieldError(
        "--model_name",
        absl::StrCat(model_name_, " is not a folder",
                     host.HubDownloadHint(model_name_, "--model_name")));
  }

  // Checks that ids mean the same in the data and to the model.
  absl::Status CheckTokens(const std::string& model, const std::string& folder,
                           const llada_windows::WindowData& data) const {
    const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
        LoadTokenizer(model);
    // A model without a tokenizer: only the vocabulary's size can be checked.
    if (absl::IsNotFound(tokenizer.status())) return absl::OkStatus();
    CAPSTAN_RETURN_IF_ERROR(tokenizer.status());
    if (TokenDifference(**tokenizer, *data.tokenizer).empty()) {
      return absl::OkStatus();
    }
    return FieldError(
        "--data_dir",
        absl::StrCat(data_dir_, " holds ids of ",
                     llada_windows::HasCharacters(folder) ? "characters"
                                                          : "another tokenizer",
                     ", which mean something else in ", model_name_,
                     "'s own vocabulary: write the text in its tokens, trainer "
                     "llada-data "
                     "--text=",
                     data_dir_,
                     "/shakespeare_raw.txt --tokenizer=", model_name_,
                     " --output=FOLDER, and say --data_dir=FOLDER"));
  }

  // The scripts default to --fp16. Ours default to 16 bits if they are faster.
  std::string Precision() const {
    return fp16_ ? "fp16" : no_fp16_ ? "fp32" : "auto";
  }

  // The flags of the script, and its defaults.
  std::string data_dir_;
  std::string model_name_ = "GSAI-ML/LLaDA-8B-Instruct";
  int64_t batch_size_ = 1;  // per rank
  int64_t epochs_ = 5;
  double learning_rate_ = 1e-5;
  std::string save_dir_ = "checkpoints_pretrained";
  // Neither: the dtype that is fast on the device.
  bool fp16_ = false;
  bool no_fp16_ = false;
  bool resume_ = false;
};

}  // namespace

CAPSTAN_COMMAND("capstan.command_llada", LladaCommand,
                "Fine-tune a LLaDA, with the flags of its Python script");

}  // namespace capstan
