// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_LIB_WRITE_ADAPTER_FOR_TEST_H_
#define CAPSTAN_PLUGINS_SDK_LIB_WRITE_ADAPTER_FOR_TEST_H_

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/files.h"
#include "base/status.h"
#include "plugins/sdk/lib/lora.h"
#include "plugins/sdk/lib/safetensors.h"

namespace capstan {

// Writes both files of an adapter into an existing folder that has neither;
// `tensors` by name, in float32.
inline absl::Status WriteAdapter(
    const std::string& folder, const LoraSpec& spec,
    const std::string& base_model,
    const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::unique_ptr<SafetensorsWriter> writer,
      SafetensorsWriter::Create(folder + "/adapter_model.safetensors"));
  for (const auto& [name, tensor] : tensors) {
    writer->Declare(name, at::kFloat, tensor.sizes().vec());
  }
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor value = tensor.to(at::kCPU, at::kFloat).contiguous();
    CAPSTAN_RETURN_IF_ERROR(
        writer->Append(value.const_data_ptr(), value.nbytes()));
  }
  CAPSTAN_RETURN_IF_ERROR(writer->Close());
  AdapterSpec alone;
  static_cast<LoraSpec&>(alone) = spec;
  return WriteWholeFile(folder + "/adapter_config.json",
                        AdapterConfigJson(alone, base_model));
}

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_LIB_WRITE_ADAPTER_FOR_TEST_H_
