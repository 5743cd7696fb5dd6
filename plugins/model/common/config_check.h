// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_MODEL_COMMON_CONFIG_CHECK_H_
#define CAPSTAN_PLUGINS_MODEL_COMMON_CONFIG_CHECK_H_

#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/types/optional.h"

namespace capstan {

// A config's number, or the default that its 0 stands for.
template <typename T, typename Default>
T OrDefault(T value, Default otherwise) {
  return value == 0 ? static_cast<T>(otherwise) : value;
}

// A key with an invalid value.
struct ConfigProblem {
  std::string key;
  std::string text;
};

// Validates the numbers of a model, from a folder or a config, and keeps the
// first problem.
class ConfigCheck {
 public:
  // So that the product of two sizes fits an int64.
  static constexpr int64_t kMostOfASize = std::numeric_limits<int32_t>::max();

  void Size(const char* key, int64_t value, int64_t most = kMostOfASize);
  void Positive(const char* key, double value);
  void Rate(const char* key, double value);  // in [0, 1)
  // Checks the id if it is set.
  void Token(const char* key, absl::optional<int64_t> id, int64_t vocab_size);

  void Fail(const char* key, std::string text);
  bool ok() const { return !problem_.has_value(); }
  const absl::optional<ConfigProblem>& problem() const { return problem_; }
  // A FieldError.
  absl::Status status() const;

 private:
  absl::optional<ConfigProblem> problem_;
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_MODEL_COMMON_CONFIG_CHECK_H_
