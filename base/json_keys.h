// SPDX-License-Identifier: Apache-2.0
//
// Reads the keys of a JSON file, with errors that name the file, the key, what
// was expected and what was found.
#ifndef CAPSTAN_BASE_JSON_KEYS_H_
#define CAPSTAN_BASE_JSON_KEYS_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace capstan {

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

#endif  // CAPSTAN_BASE_JSON_KEYS_H_
