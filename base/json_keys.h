// SPDX-License-Identifier: Apache-2.0
//
// The keys of a JSON file that others wrote, read with errors that name the
// file, the key, what was wanted and what is there.
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

// The object that `text` of file `path` holds: "PATH: not a JSON object".
absl::StatusOr<nlohmann::ordered_json> ParseObject(const std::string& path,
                                                   absl::string_view text);

// Reads an object's keys, and remembers the first that is wrong.
class JsonKeys {
 public:
  using Json = nlohmann::ordered_json;

  // `json` outlives this.
  JsonKeys(std::string path, const Json& json)
      : path_(std::move(path)), json_(json) {}

  // The key's value, or `otherwise` if it is absent or null; with none, that is
  // wrong, and 1 is returned.
  int64_t Int(const char* key, absl::optional<int64_t> otherwise);
  double Double(const char* key, double otherwise);
  bool Bool(const char* key, bool otherwise);
  // Fails unless the key is absent, null or one of the two values.
  void Only(const char* key, const Json& value, const Json& or_value);
  // Fails unless the key is there, with this value.
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
