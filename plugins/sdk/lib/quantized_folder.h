// SPDX-License-Identifier: Apache-2.0
//
// Hugging Face folders whose matrices bitsandbytes has quantised to NF4: for a
// matrix NAME there are its nibbles as NAME (uint8), NAME.absmax (the scales;
// uint8 if they are quantised, too), NAME.quant_map, NAME.nested_absmax,
// NAME.nested_quant_map and NAME.quant_state.bitsandbytes__nf4, the bytes of a
// JSON object (bitsandbytes, functional.py, QuantState.as_dict).
#ifndef CAPSTAN_PLUGINS_SDK_LIB_QUANTIZED_FOLDER_H_
#define CAPSTAN_PLUGINS_SDK_LIB_QUANTIZED_FOLDER_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "plugins/sdk/lib/packed_matrix.h"
#include "plugins/sdk/lib/safetensors.h"

namespace capstan {

// A reader of such a folder: tensors() has each quantised matrix once, in the
// shape and dtype that it had, with null data, and ReadFloats gives its values.
class QuantizedReader : public SafetensorsReader {
 public:
  // The tensor as stored in the files; null if it isn't quantised.
  virtual const PackedMatrix* Packed(const std::string& name) const = 0;
};

// As SafetensorsReader::Open; a QuantizedReader if the folder has such
// matrices. Those that contradict themselves are an INVALID_ARGUMENT that names
// file and tensor.
absl::StatusOr<std::unique_ptr<SafetensorsReader>> OpenWeights(
    const std::string& path);

// Whether the text of config.json's quantization_config is one that such
// folders have; an INVALID_ARGUMENT that says what it is otherwise.
absl::Status CheckQuantizationConfig(absl::string_view json);

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_LIB_QUANTIZED_FOLDER_H_
