// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_RUN_FOLDER_JSON_FIELDS_H_
#define CAPSTAN_DESK_RUN_FOLDER_JSON_FIELDS_H_

#include <nlohmann/json.hpp>
#include <string>

#include "absl/types/optional.h"

namespace capstan {

// Fields of JSON that others have written, which may be anything, not even an
// object. Json: nlohmann's json or ordered_json.

// The number of this name; unset if there is none.
template <typename Json>
absl::optional<double> NumberOf(const Json& json, const std::string& name) {
  const auto found = json.find(name);
  if (found == json.end() || !found->is_number()) return absl::nullopt;
  return found->template get<double>();
}

// The text of this name, or "".
template <typename Json>
std::string TextOf(const Json& json, const std::string& name) {
  const auto found = json.find(name);
  if (found == json.end() || !found->is_string()) return "";
  return found->template get<std::string>();
}

}  // namespace capstan

#endif  // CAPSTAN_DESK_RUN_FOLDER_JSON_FIELDS_H_
