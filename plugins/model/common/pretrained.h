// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_MODEL_COMMON_PRETRAINED_H_
#define CAPSTAN_PLUGINS_MODEL_COMMON_PRETRAINED_H_

#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "plugins/sdk/lib/safetensors.h"
#include "plugins/sdk/model.h"

namespace google {
namespace protobuf {
class Message;
}  // namespace protobuf
}  // namespace google

namespace capstan {

// "[2, 3]", for errors.
std::string ShapeText(const std::vector<int64_t>& shape);

// FieldError if `config`, which names a folder as `pretrained`, sets other
// fields than those.
absl::Status CheckAlone(const google::protobuf::Message& config,
                        std::initializer_list<const char*> fields);

// Opens the weights of `folder`, which must contain exactly the parameters, in
// their shapes and a readable dtype, apart from tensors whose names `unused`
// accepts (null: none). A FieldError for "pretrained" names tensor, file and
// shapes.
absl::StatusOr<std::unique_ptr<SafetensorsReader>> OpenPretrained(
    const std::string& folder, const std::vector<ParameterSpec>& specs,
    const std::function<bool(absl::string_view name)>& unused = nullptr);

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_MODEL_COMMON_PRETRAINED_H_
