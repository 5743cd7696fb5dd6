// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>

#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/machine.h"
#include "base/status.h"
#include "desk/checkpoints/merge_adapter.h"
#include "desk/generate/model_flags.h"
#include "trainer/commands/command.h"
#include "trainer/metrics/console.h"

namespace capstan {
namespace {

struct MergeOptions {
  std::string model;
  std::string adapter;
  std::string output;
  bool other_base = false;
  std::vector<std::string> plugin_path;
};

absl::StatusOr<int> Merge(const MergeOptions& options) {
  at::set_num_threads(AvailableCores());
  AdapterMerge merge;
  CAPSTAN_ASSIGN_OR_RETURN(merge.base, FinishedModel(options.model));
  CAPSTAN_ASSIGN_OR_RETURN(merge.adapter, FinishedModel(options.adapter));
  merge.output = FromCaller(options.output);
  merge.other_base = options.other_base;
  CAPSTAN_ASSIGN_OR_RETURN(const std::string note, MergeAdapter(merge));
  std::cout << "wrote " << PrintableText(options.output) << std::endl;
  if (!note.empty()) std::cout << PrintableText(note) << std::endl;
  std::vector<int64_t> tokens;
  CAPSTAN_ASSIGN_OR_RETURN(const at::Tensor apart,
                           FixedLogits(options.model, options.adapter,
                                       options.plugin_path, &tokens));
  CAPSTAN_ASSIGN_OR_RETURN(
      const at::Tensor merged,
      FixedLogits(options.output, "", options.plugin_path, &tokens));
  std::cout << absl::StrFormat(
      "its logits on %d fixed tokens differ from the adapter model's by at "
      "most "
      "%.2e (theirs reach %.1f)\n",
      apart.size(0), (apart - merged).abs().max().item<double>(),
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

const RegisterFunction<MergeOptions> merge("merge", AddFlags, Merge);

}  // namespace
}  // namespace capstan
