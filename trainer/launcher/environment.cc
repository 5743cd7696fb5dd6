// SPDX-License-Identifier: Apache-2.0
#include "trainer/launcher/environment.h"

#include <cstdlib>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

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

absl::Status VariableSet::Missing(const char* name) const {
  return Contradicts(name, "is not set");
}

absl::Status VariableSet::Contradicts(absl::string_view name,
                                      absl::string_view problem) const {
  return VariableError(
      name, absl::StrCat(problem, ", but ", because_, ": ", advice_));
}

absl::StatusOr<std::string> VariableSet::Text(const char* name) const {
  absl::optional<std::string> text = Variable(name);
  if (!text.has_value()) return Missing(name);
  return *std::move(text);
}

absl::StatusOr<int> VariableSet::Int(const char* name, int low,
                                     int high) const {
  CAPSTAN_ASSIGN_OR_RETURN(const absl::optional<int> value,
                           IntVariable(name, low, high));
  if (!value.has_value()) return Missing(name);
  return *value;
}

}  // namespace capstan
