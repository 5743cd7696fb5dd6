// SPDX-License-Identifier: Apache-2.0
//
// Adapter folders in the format of Hugging Face's PEFT: adapter_config.json and
// adapter_model.safetensors (peft, developer guides, "Checkpoint format").
#ifndef CAPSTAN_PLUGINS_SDK_LIB_LORA_H_
#define CAPSTAN_PLUGINS_SDK_LIB_LORA_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "plugins/sdk/model.h"

namespace capstan {

// What an adapter_config.json says.
struct AdapterSpec : LoraSpec {
  // Modules that are trained whole (Model::SetModulesToSave).
  std::vector<std::string> modules_to_save;
  // Whether an embedding among them is the head, too ("ensure_weight_tying").
  bool ties = false;
};

// The text of adapter_config.json, for inference. `base_model` is the folder or
// Hugging Face name of the adapted model; "": none.
std::string AdapterConfigJson(const AdapterSpec& spec,
                              const std::string& base_model);

// Reads an adapter's folder: adapter_config.json, and `quantize` from its
// capstan.json, if it has one; sets `pretrained` to the folder. Errors name
// file and key: for malformed files, and for settings that change the adapter's
// computation and that AdapterSpec lacks (lora_bias, rank_pattern, a regular
// expression as target_modules ..).
absl::StatusOr<AdapterSpec> ReadAdapterConfig(const std::string& folder);

// Capstan.json's key and value for a spec's `quantize`; a null value for
// kFolders, which it doesn't have.
constexpr char kQuantizeKey[] = "base_quantized";
const char* QuantizeName(Quantize quantize);

// Whether the name is that of an adapter's parameter.
bool IsAdapterParameter(absl::string_view name);

// The parts of "base_model.model.MODULE.lora_A.weight".
struct AdapterName {
  std::string module;         // "model.layers.0.self_attn.q_proj"
  bool is_b = false;          // lora_B rather than lora_A
  bool is_magnitude = false;  // neither: MagnitudeName's
};
// nullopt for a name that isn't an adapter's.
absl::optional<AdapterName> ParseAdapterName(absl::string_view name);
std::string AdapterParameterName(absl::string_view module, bool is_b);
// "base_model.model.MODULE.lora_magnitude_vector", of DoRA.
std::string MagnitudeName(absl::string_view module);

// The name in an adapter's file of the model's parameter `name`, which is one
// of a module to save.
std::string SavedParameterName(absl::string_view name);

// Whether a tensor of an adapter's file is a second copy of a saved module, or
// the base's: PEFT writes both where the embedding has grown
// (save_embedding_layers).
bool IsSecondCopy(absl::string_view name);

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_LIB_LORA_H_
