// SPDX-License-Identifier: Apache-2.0
//
// The flags by which generate, chat, merge and eval name a model.
#ifndef CAPSTAN_TRAINER_COMMANDS_MODEL_FLAGS_H_
#define CAPSTAN_TRAINER_COMMANDS_MODEL_FLAGS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "inference/load/generator.h"
#include "plugins/sdk/command.h"
#include "plugins/sdk/inference_weights.h"

namespace capstan {

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
    const std::vector<std::string>& overrides, WeightForm weights);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_COMMANDS_MODEL_FLAGS_H_
