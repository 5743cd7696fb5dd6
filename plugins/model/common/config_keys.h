// SPDX-License-Identifier: Apache-2.0
//
// The keys of a model's config.json, read with errors that name file and key.
#ifndef CAPSTAN_PLUGINS_MODEL_COMMON_CONFIG_KEYS_H_
#define CAPSTAN_PLUGINS_MODEL_COMMON_CONFIG_KEYS_H_

#include <c10/core/ScalarType.h>

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace capstan {

using ConfigJson = nlohmann::ordered_json;

// The object that `text` of file `path` holds.
absl::StatusOr<ConfigJson> ParseObject(const std::string& path,
                                       const std::string& text);

// Reads keys of config.json, and remembers the first that is wrong.
class ConfigKeys {
 public:
  // `json` outlives this.
  ConfigKeys(std::string path, const ConfigJson& json)
      : path_(std::move(path)), json_(json) {}

  // The key's value, or `otherwise` if it is absent or null; with none, that is
  // wrong.
  int64_t Int(const char* key, absl::optional<int64_t> otherwise);
  double Double(const char* key, double otherwise);
  bool Bool(const char* key, bool otherwise);
  // A token id; the first of a list.
  absl::optional<int64_t> Token(const char* key);
  // Fails unless the key is absent, null or one of the two values.
  void Only(const char* key, const ConfigJson& value,
            const ConfigJson& or_value);
  // Fails unless the key is there, with this value.
  void Must(const char* key, const ConfigJson& value);
  // Fails if the weights are quantized.
  void RejectQuantized();

  // Null if absent or null.
  const ConfigJson* Find(const char* key) const;
  void Fail(absl::string_view key, absl::string_view problem);
  const absl::Status& status() const { return status_; }

 private:
  const std::string path_;
  const ConfigJson& json_;
  absl::Status status_;
};

// The weights' dtype as config.json calls it: "bfloat16", "float16", "float32".
const char* DtypeName(c10::ScalarType dtype);

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_MODEL_COMMON_CONFIG_KEYS_H_
