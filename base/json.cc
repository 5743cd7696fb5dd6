// SPDX-License-Identifier: Apache-2.0
#include "base/json.h"

namespace capstan {

template <typename Json>
Json ParseJson(absl::string_view text) {
  if (JsonDepth(text) > kMostJsonDepth) return Json(Json::value_t::discarded);
  Json json = Json::parse(text.begin(), text.end(), /*cb=*/nullptr,
                          /*allow_exceptions=*/false);
  if (!json.is_discarded()) return json;
  const absl::optional<std::string> fitting = WithNumbersThatFit(text);
  return fitting.has_value() ? Json::parse(*fitting, /*cb=*/nullptr,
                                           /*allow_exceptions=*/false)
                             : json;
}

template nlohmann::json ParseJson<nlohmann::json>(absl::string_view);
template nlohmann::ordered_json ParseJson<nlohmann::ordered_json>(
    absl::string_view);

}  // namespace capstan
