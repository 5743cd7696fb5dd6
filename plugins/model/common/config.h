// SPDX-License-Identifier: Apache-2.0
//
// A model's sizes and other settings, from config.json or a plugin's config.
#ifndef CAPSTAN_PLUGINS_MODEL_COMMON_CONFIG_H_
#define CAPSTAN_PLUGINS_MODEL_COMMON_CONFIG_H_

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "base/json.h"

namespace capstan {

// A config's number, or the default that its 0 stands for.
template <typename T, typename Default>
T OrDefault(T value, Default otherwise) {
  return value == 0 ? static_cast<T>(otherwise) : value;
}

// Validates the numbers of a model, from a folder or a config, and keeps the
// first problem.
class ConfigCheck {
 public:
  // So that the product of two sizes fits an int64.
  static constexpr int64_t kMostOfASize = std::numeric_limits<int32_t>::max();

  // Far beyond any model's: each layer has names and tensors, which are made
  // before a file says whether it has them.
  static constexpr int64_t kMostLayers = 1 << 14;

  void Size(const char* key, int64_t value, int64_t most = kMostOfASize);
  // Fails if that many parameters, the model's, are more than any machine
  // holds; below, products of sizes fit an int64. Blames the key.
  void Total(const char* key, double parameters);
  void Positive(const char* key, double value);
  void Rate(const char* key, double value);  // in [0, 1)
  // Checks the id if it is set.
  void Token(const char* key, absl::optional<int64_t> id, int64_t vocab_size);
  void Fail(const char* key, const std::string& problem);

  bool ok() const { return status_.ok(); }
  // A FieldError for the key.
  const absl::Status& status() const { return status_; }

 private:
  absl::Status status_;
};

using ConfigJson = JsonKeys::Json;

// The keys of a config.json.
class ConfigKeys : public JsonKeys {
 public:
  // `json` must outlive this.
  ConfigKeys(std::string path, const ConfigJson& json)
      : JsonKeys(std::move(path), json), json_(json) {}

  // Whether the key is there, if only with null.
  bool Has(const char* key) const { return json_.contains(key); }
  // A token id; of a list, the first.
  absl::optional<int64_t> Token(const char* key);
  // Fails if the weights are quantized.
  void RejectQuantized();
  // Fails with the FieldError of a check of what was read; returns status().
  absl::Status FailIf(const absl::Status& check);

 private:
  const ConfigJson& json_;
};

// The weights' dtype as config.json calls it: "bfloat16", "float16", "float32".
const char* DtypeName(c10::ScalarType dtype);

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_MODEL_COMMON_CONFIG_H_
