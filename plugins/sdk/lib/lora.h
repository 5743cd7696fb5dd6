// SPDX-License-Identifier: Apache-2.0
//
// Folders of low-rank adapters as Hugging Face's PEFT reads and writes them:
// adapter_config.json and adapter_model.safetensors (peft, "Checkpoint
// format", developer guides).
#ifndef CAPSTAN_PLUGINS_SDK_LIB_LORA_H_
#define CAPSTAN_PLUGINS_SDK_LIB_LORA_H_

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "plugins/sdk/model.h"

namespace capstan {

// The text of adapter_config.json, for inference. `base_model` names the model
// that it adapts, a folder or a name at Hugging Face; "": none.
std::string AdapterConfigJson(const LoraSpec& spec,
                              const std::string& base_model);

// Rank, alpha, dropout, rslora and target_modules of an adapter's folder, with
// `pretrained` set to it. An error names the file and the key: for broken
// files, and for settings that change what the adapter computes and that
// LoraSpec doesn't have (use_dora, lora_bias, rank_pattern, modules_to_save, a
// regular expression as target_modules ..).
absl::StatusOr<LoraSpec> ReadAdapterConfig(const std::string& folder);

// Whether a parameter of that name is one of an adapter's.
bool IsAdapterParameter(absl::string_view name);

// "base_model.model.MODULE.lora_A.weight" in parts.
struct AdapterName {
  std::string module;  // "model.layers.0.self_attn.q_proj"
  bool is_b = false;   // lora_B rather than lora_A
};
// None for a name that is no adapter's.
absl::optional<AdapterName> ParseAdapterName(absl::string_view name);
std::string AdapterParameterName(absl::string_view module, bool is_b);

// Writes both files into an existing folder that has neither; the tensors, by
// name, in float32.
absl::Status WriteAdapter(
    const std::string& folder, const LoraSpec& spec,
    const std::string& base_model,
    const std::vector<std::pair<std::string, at::Tensor>>& tensors);

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_LIB_LORA_H_
