// SPDX-License-Identifier: Apache-2.0
#include "base/json_numbers.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace capstan {
namespace {

constexpr char kGreatestDouble[] = "1.7976931348623157e308";

bool IsInteger(absl::string_view number) {
  absl::ConsumePrefix(&number, "-");
  return !number.empty() &&
         number.find_first_not_of("0123456789") == absl::string_view::npos;
}

// The replacement for `number`; nullopt if it fits or isn't a number.
absl::optional<std::string> ThatFits(absl::string_view number) {
  const bool integer = IsInteger(number);
  int64_t narrow = 0;
  uint64_t natural = 0;
  if (integer && (absl::SimpleAtoi(number, &narrow) ||
                  absl::SimpleAtoi(number, &natural))) {
    return absl::nullopt;
  }
  double value = 0.0;
  if (!absl::SimpleAtod(number, &value)) return absl::nullopt;
  if (std::isinf(value)) {
    return absl::StrCat(value < 0.0 ? "-" : "", kGreatestDouble);
  }
  if (!integer) return absl::nullopt;
  return absl::StrCat(number, "e0");
}

// Offset after the string whose opening quote is at `at`.
size_t SkipString(absl::string_view json, size_t at) {
  for (++at; at < json.size(); ++at) {
    if (json[at] == '\\') {
      ++at;
    } else if (json[at] == '"') {
      return at + 1;
    }
  }
  return json.size();
}

}  // namespace

absl::optional<std::string> WithNumbersThatFit(absl::string_view json) {
  std::string fitting;
  size_t copied = 0;
  for (size_t at = 0; at < json.size();) {
    if (json[at] == '"') {
      at = SkipString(json, at);
      continue;
    }
    if (json[at] != '-' && !absl::ascii_isdigit(json[at])) {
      ++at;
      continue;
    }
    const size_t end =
        std::min(json.find_first_not_of("0123456789+-.eE", at), json.size());
    const absl::optional<std::string> other =
        ThatFits(json.substr(at, end - at));
    if (other.has_value()) {
      absl::StrAppend(&fitting, json.substr(copied, at - copied), *other);
      copied = end;
    }
    at = end;
  }
  if (copied == 0) return absl::nullopt;
  absl::StrAppend(&fitting, json.substr(copied));
  return fitting;
}

int JsonDepth(absl::string_view json) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

}  // namespace capstan
