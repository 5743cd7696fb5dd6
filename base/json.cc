// SPDX-License-Identifier: Apache-2.0
#include "base/json.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

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
  int depth = 0, deepest = 0;
  for (size_t at = 0; at < json.size();) {
    const char c = json[at];
    if (c == '[' || c == '{') deepest = std::max(deepest, ++depth);
    if (c == ']' || c == '}') --depth;
    at = c == '"' ? SkipString(json, at) : at + 1;
  }
  return deepest;
}

namespace {

// nlohmann's ordered objects compare a new key with each that they have.
constexpr int64_t kMostOrderedMembers = 1 << 16;

// At least as many as the largest object of `json` has, which isn't nested more
// deeply than kMostJsonDepth.
int64_t MostMembers(absl::string_view json) {
  std::vector<int64_t> members = {0};
  int64_t most = 0;
  for (size_t at = 0; at < json.size();) {
    const char c = json[at];
    if (c == '[' || c == '{') members.push_back(0);
    if ((c == ']' || c == '}') && members.size() > 1) members.pop_back();
    if (c == ':') most = std::max(most, ++members.back());
    at = c == '"' ? SkipString(json, at) : at + 1;
  }
  return most;
}

}  // namespace

template <typename Json>
Json ParseJson(absl::string_view text) {
  if (JsonDepth(text) > kMostJsonDepth ||
      (std::is_same_v<Json, nlohmann::ordered_json> &&
       MostMembers(text) > kMostOrderedMembers)) {
    return Json(Json::value_t::discarded);
  }
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

absl::StatusOr<nlohmann::ordered_json> ParseObject(const std::string& path,
                                                   absl::string_view text) {
  using Json = nlohmann::ordered_json;
  Json json = ParseJson<Json>(text);
  if (json.is_object()) return json;
  return absl::InvalidArgumentError(absl::StrCat(path, ": not a JSON object"));
}

int64_t JsonKeys::Int(const char* key, absl::optional<int64_t> otherwise) {
  const Json* value = Find(key);
  if (value == nullptr) {
    if (!otherwise.has_value()) Fail(key, "is missing");
    return otherwise.value_or(1);
  }
  const absl::optional<int64_t> integer = JsonInteger(*value);
  if (integer.has_value()) return *integer;
  Fail(key,
       value->is_number() ? "must be an integer below 2^63"
                          : "must be an integer",
       *value);
  return 1;
}

double JsonKeys::Double(const char* key, double otherwise) {
  const Json* value = Find(key);
  if (value == nullptr) return otherwise;
  if (value->is_number()) return value->get<double>();
  Fail(key, "must be a number", *value);
  return otherwise;
}

bool JsonKeys::Bool(const char* key, bool otherwise) {
  const Json* value = Find(key);
  if (value == nullptr) return otherwise;
  if (value->is_boolean()) return value->get<bool>();
  Fail(key, "must be true or false", *value);
  return otherwise;
}

void JsonKeys::Only(const char* key, const Json& value, const Json& or_value) {
  const Json* found = Find(key);
  if (found == nullptr || *found == value || *found == or_value) return;
  Fail(key,
       absl::StrCat(found->dump(), " is not implemented, only ", value.dump()));
}

void JsonKeys::Must(const char* key, const Json& value) {
  if (Find(key) == nullptr) {
    Fail(key, absl::StrCat("is missing, must be ", value.dump()));
  }
  Only(key, value, value);
}

const nlohmann::ordered_json* JsonKeys::Find(const char* key) const {
  const auto it = json_.find(key);
  return it == json_.end() || it->is_null() ? nullptr : &*it;
}

void JsonKeys::Fail(absl::string_view key, absl::string_view problem) {
  if (!status_.ok()) return;
  status_ =
      absl::InvalidArgumentError(absl::StrCat(path_, ": ", key, " ", problem));
}

void JsonKeys::Fail(absl::string_view key, absl::string_view problem,
                    const Json& value) {
  Fail(key, absl::StrCat(problem, ", is ", value.dump()));
}

}  // namespace capstan
