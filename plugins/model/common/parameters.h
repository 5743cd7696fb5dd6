// SPDX-License-Identifier: Apache-2.0
//
// Parameters of models made of an embedding, layers and a head, and the weights
// of a folder.
#ifndef CAPSTAN_PLUGINS_MODEL_COMMON_PARAMETERS_H_
#define CAPSTAN_PLUGINS_MODEL_COMMON_PARAMETERS_H_

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/memory.h"
#include "plugins/sdk/lib/safetensors.h"
#include "plugins/sdk/model.h"

namespace google::protobuf {
class Message;
}  // namespace google::protobuf

namespace capstan {

// "embed", "layers.N" ..., "head".
std::vector<std::string> UnitNames(int64_t layers);

// Elements [begin, begin + count) of a new parameter: biases are 0, norms 1,
// matrices normal with standard deviation `deviation`.
void FillInitial(const ParameterSpec& spec, uint64_t seed, double deviation,
                 int64_t begin, int64_t count, float* out);

// Elements [begin, begin + count) of a sequence that is uniform in
// [-bound, bound), from RandomKey `key`.
void FillUniform(uint64_t key, double bound, int64_t begin, int64_t count,
                 float* out);

// CHECKs that the bound tensors have the parameters' shapes.
void CheckBound(const std::vector<at::Tensor>& tensors,
                const std::vector<ParameterSpec>& specs);

// Bytes of the largest gradient of a unit's parameters in `compute`.
int64_t LargestGradient(const std::vector<ParameterSpec>& specs, int unit,
                        c10::ScalarType compute);

// Converts `memory` for unit `unit`, whose output has `output` bytes.
UnitMemory PlanUnit(const kernels::OperatorMemory& memory, int64_t output,
                    const std::vector<ParameterSpec>& specs, int unit,
                    c10::ScalarType compute);

// FieldError if `config`, which names a folder as `pretrained`, sets other
// fields than those.
absl::Status CheckAlone(const google::protobuf::Message& config,
                        std::initializer_list<const char*> fields);

// The words of an error about tensors that don't fit the parameters.
struct TensorWords {
  const char* what;     // "the weights lack"
  const char* wanted;   // "which config.json asks for"
  const char* shape;    // "but config.json makes it"
  std::string unknown;  // "has no place in .."
  const char* hint;     // at the end
};

// Checks that `weights`, of `folder`, are the parameters in `specs`, in their
// shapes and a readable dtype (any float if `any_float`), apart from tensors
// whose names `unused` accepts (null: none). INVALID_ARGUMENT names tensor and
// file.
absl::Status CheckTensors(
    const std::vector<ParameterSpec>& specs, const SafetensorsReader& weights,
    const std::string& folder, const TensorWords& words, bool any_float,
    const std::function<bool(absl::string_view name)>& unused = nullptr);

// Opens the weights of `folder`, which must contain exactly the parameters, in
// their shapes and a readable dtype, apart from tensors whose names `unused`
// accepts (null: none). A FieldError for "pretrained" names tensor, file and
// shapes.
absl::StatusOr<std::unique_ptr<SafetensorsReader>> OpenPretrained(
    const std::string& folder, const std::vector<ParameterSpec>& specs,
    const std::function<bool(absl::string_view name)>& unused = nullptr);

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_MODEL_COMMON_PARAMETERS_H_
