// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/machine.h"
#include "base/status.h"
#include "inference/load/generator.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/merge_adapter.h"
#include "trainer/commands/command.h"
#include "trainer/commands/model_flags.h"
#include "trainer/session/run_folders.h"

namespace capstan {
namespace {

struct MergeOptions {
  std::string model;
  std::string adapter;
  std::string output;
  bool other_base = false;
  std::vector<std::string> plugin_path;
};

// Tokens used to compare two models.
constexpr int64_t kTokens = 64;

// For fixed tokens: [1, T, V], float32.
absl::StatusOr<at::Tensor> LogitsOf(const std::string& model,
                                    const std::string& adapter,
                                    const MergeOptions& options) {
  // MergeAdapter has compared the weights.
  const AdapterOptions with = {adapter, /*other_base=*/true};
  CAPSTAN_ASSIGN_OR_RETURN(const Generator generator,
                           LoadWithPlugins(model, with, options.plugin_path, {},
                                           WeightForm::kFloat32));
  TokenModel* const tokens = generator.model->token_model();
  if (tokens == nullptr) {
    return absl::UnimplementedError("the model isn't one of token sequences");
  }
  const int64_t length = std::min(kTokens, tokens->max_positions());
  const at::Tensor input = at::empty({1, length}, at::kLong);
  for (int64_t i = 0; i < length; ++i) {
    input.mutable_data_ptr<int64_t>()[i] =
        (7919 * i + 13) % tokens->vocab_size();
  }
  PlainRunner runner;
  TokenInput what;
  what.tokens = input;
  return tokens->Logits(what, runner).to(at::kFloat).clone();
}

absl::StatusOr<int> Merge(const MergeOptions& options) {
  at::set_num_threads(AvailableCores());
  const at::NoGradGuard no_grad;
  const std::vector<std::string> folders =
      AllFromCaller({options.model, options.adapter, options.output});
  AdapterMerge merge;
  merge.base = ModelFolder(folders[0], RunFoldersHere());
  merge.adapter = ModelFolder(folders[1], RunFoldersHere());
  if (IsCheckpoint(merge.adapter)) {
    return absl::FailedPreconditionError(
        absl::StrCat("--adapter=", options.adapter,
                     ": the run has no final/ yet, and a checkpoint can't be "
                     "merged: let it end first"));
  }
  merge.output = folders[2];
  merge.other_base = options.other_base;
  CAPSTAN_ASSIGN_OR_RETURN(const std::string note, MergeAdapter(merge));
  std::cout << "wrote " << options.output << std::endl;
  if (!note.empty()) std::cout << note << std::endl;
  CAPSTAN_ASSIGN_OR_RETURN(const at::Tensor apart,
                           LogitsOf(options.model, options.adapter, options));
  CAPSTAN_ASSIGN_OR_RETURN(const at::Tensor merged,
                           LogitsOf(options.output, "", options));
  std::cout << absl::StrFormat(
      "its logits on %d fixed tokens differ from the adapter model's by at "
      "most "
      "%.2e (theirs reach %.1f)\n",
      apart.size(1), (apart - merged).abs().max().item<double>(),
      apart.abs().max().item<double>());
  return 0;
}

void AddFlags(Flags& flags, MergeOptions* options) {
  flags.Add("--model", &options->model, "The base, a Hugging Face folder")
      .Type("FOLDER")
      .Required();
  flags
      .Add("--adapter", &options->adapter,
           "The adapter, a folder with PEFT's files, or a run that trained "
           "one (runs/NAME)")
      .Type("FOLDER")
      .Required();
  flags.Add("--output", &options->output, "The folder to write")
      .Type("FOLDER")
      .Required();
  flags.Add("--other_base", &options->other_base,
            "Merge although the adapter was trained on a base with other "
            "weights");
  AddPluginPath(flags, &options->plugin_path);
}

const RegisterFunction<MergeOptions> merge(
    100, "merge", "Make a whole model of a base and a LoRA adapter", AddFlags,
    Merge);

}  // namespace
}  // namespace capstan
