// SPDX-License-Identifier: Apache-2.0
#include "cluster/launch/environment.h"

#include <cstdlib>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace capstan {

absl::optional<std::string> Variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return absl::nullopt;
  return std::string(value);
}

absl::Status VariableError(absl::string_view name, absl::string_view problem) {
  return absl::InvalidArgumentError(
      absl::StrCat("environment variable ", name, " ", problem));
}

absl::StatusOr<absl::optional<int>> IntVariable(const char* name, int low,
                                                int high) {
  const absl::optional<std::string> text = Variable(name);
  if (!text.has_value()) return absl::optional<int>();
  int value = 0;
  if (!absl::SimpleAtoi(*text, &value)) {
    return VariableError(
        name, absl::StrCat("must be an integer, is \"", *text, "\""));
  }
  if (value < low) {
    return VariableError(
        name, absl::StrCat("must be at least ", low, ", is ", value));
  }
  if (value >= high) {
    return VariableError(
        name, absl::StrCat("must be less than ", high, ", is ", value));
  }
  return absl::optional<int>(value);
}

}  // namespace capstan
