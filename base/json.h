// SPDX-License-Identifier: Apache-2.0
//
// JSON from outside, parsed into nlohmann's types, with errors that name the
// file, the key, what was expected and what was found.
#ifndef CAPSTAN_BASE_JSON_H_
#define CAPSTAN_BASE_JSON_H_

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/json_numbers.h"

namespace capstan {

// Parses `text`; the result is_discarded() if it isn't JSON or nests more
// deeply than kMostJsonDepth, or has an ordered object of more than 2^16 keys,
// which would take minutes. Numbers beyond 64 bits become floating-point.
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

// `json` as text, on one line if `indent` is -1. Bytes that aren't UTF-8, as
// names of files may have, are replaced: dump alone throws on them.
template <typename Json>
std::string JsonText(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false,
                   Json::error_handler_t::replace);
}

// Parses `text`, the contents of `path`. Error: "PATH: not a JSON object".
absl::StatusOr<nlohmann::ordered_json> ParseObject(const std::string& path,
                                                   absl::string_view text);

// Reads an object's keys and keeps the first error.
class JsonKeys {
 public:
  using Json = nlohmann::ordered_json;

  // `json` must outlive this.
  JsonKeys(std::string path, const Json& json)
      : path_(std::move(path)), json_(json) {}

  // The key's value, or `otherwise` if it is absent or null. With no
  // `otherwise` that is an error and returns 1.
  int64_t Int(const char* key, absl::optional<int64_t> otherwise);
  double Double(const char* key, double otherwise);
  bool Bool(const char* key, bool otherwise);
  // Fails unless the key is absent, null or one of the two values.
  void Only(const char* key, const Json& value, const Json& or_value);
  // Fails unless the key is present with this value.
  void Must(const char* key, const Json& value);

  // Null if absent or null.
  const Json* Find(const char* key) const;
  // "PATH: KEY problem", INVALID_ARGUMENT, and "PATH: KEY problem, is VALUE".
  void Fail(absl::string_view key, absl::string_view problem);
  void Fail(absl::string_view key, absl::string_view problem,
            const Json& value);
  const absl::Status& status() const { return status_; }

 private:
  const std::string path_;
  const Json& json_;
  absl::Status status_;
};

}  // namespace capstan

#endif  // CAPSTAN_BASE_JSON_H_
