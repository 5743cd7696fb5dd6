// SPDX-License-Identifier: Apache-2.0
//
// JSON from outside, parsed into nlohmann's types.
#ifndef CAPSTAN_BASE_JSON_H_
#define CAPSTAN_BASE_JSON_H_

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/json_numbers.h"

namespace capstan {

// Parses `text`; the result is_discarded() if it isn't JSON or nests more
// deeply than kMostJsonDepth. Numbers beyond 64 bits become floating-point.
// Instantiated for nlohmann::json and nlohmann::ordered_json in json.cc alone,
// since the parser takes g++ a second or two.
template <typename Json>
Json ParseJson(absl::string_view text);

// `value` as an integer; nullopt if it isn't one or exceeds int64_t.
template <typename Json>
absl::optional<int64_t> JsonInteger(const Json& value) {
  if (!value.is_number_integer() ||
      (value.is_number_unsigned() &&
       value.template get<uint64_t>() >
           static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))) {
    return absl::nullopt;
  }
  return value.template get<int64_t>();
}

}  // namespace capstan

#endif  // CAPSTAN_BASE_JSON_H_
