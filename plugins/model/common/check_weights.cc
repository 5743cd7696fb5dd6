// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/common/check_weights.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace capstan {

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::Status CheckWeights(
    const std::vector<ParameterSpec>& specs, const SafetensorsReader& weights,
    const std::string& folder,
    const std::function<bool(absl::string_view name)>& unused) {
  std::set<std::string> known;
  for (const ParameterSpec& spec : specs) {
    known.insert(spec.name);
    const auto it = weights.tensors().find(spec.name);
    if (it == weights.tensors().end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(folder, ": the weights lack tensor '", spec.name,
                       "', which config.json asks for"));
    }
    const TensorEntry& entry = it->second;
    if (entry.shape != spec.shape) {
      return absl::InvalidArgumentError(
          absl::StrCat(entry.file, ": tensor '", spec.name, "' has the shape ",
                       ShapeText(entry.shape), ", but config.json makes it ",
                       ShapeText(spec.shape)));
    }
    if (entry.dtype != c10::ScalarType::Float &&
        entry.dtype != c10::ScalarType::Half &&
        entry.dtype != c10::ScalarType::BFloat16) {
      return absl::InvalidArgumentError(absl::StrCat(
          entry.file, ": tensor '", spec.name,
          "' must be F32, F16 or BF16, is ", c10::toString(entry.dtype)));
    }
  }
  for (const auto& [name, entry] : weights.tensors()) {
    if (known.count(name) > 0 || (unused && unused(name))) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(entry.file, ": tensor '", name,
                     "' has no place in the model that config.json describes"));
  }
  return absl::OkStatus();
}

}  // namespace capstan
