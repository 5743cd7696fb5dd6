// SPDX-License-Identifier: Apache-2.0
#include "trainer/commands/model_flags.h"

#include <iostream>
#include <map>
#include <memory>

#include "host/plugins/plugin_host.h"
#include "trainer/commands/command.h"
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
          "How matrices are kept in memory: stored (as the folder has them, in "
          "its files' own memory), float32, bfloat16 or int8 (a scale a row)")
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
    const std::vector<std::string>& overrides, WeightForm weights) {
  absl::StatusOr<Generator> generator = LoadGenerator(
      model, adapter, std::make_unique<PluginHost>(AllFromCaller(plugin_path)),
      RunFoldersHere(), overrides, weights);
  if (generator.ok() && !generator->note.empty()) {
    std::cerr << "note: " << generator->note << "\n";
  }
  return generator;
}

}  // namespace capstan
