// SPDX-License-Identifier: Apache-2.0
//
// Environment variables as launchers set them. Errors are INVALID_ARGUMENT and
// name the variable.
#ifndef CAPSTAN_TRAINER_LAUNCHER_ENVIRONMENT_H_
#define CAPSTAN_TRAINER_LAUNCHER_ENVIRONMENT_H_

#include <limits>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace capstan {

// nullopt if the variable is unset or empty.
absl::optional<std::string> Variable(const char* name);

// "environment variable NAME PROBLEM".
absl::Status VariableError(absl::string_view name, absl::string_view problem);

constexpr int kAnyInt = std::numeric_limits<int>::max();

// An integer of at least `low` and below `high`.
absl::StatusOr<absl::optional<int>> IntVariable(const char* name, int low,
                                                int high = kAnyInt);

// Variables of one launcher, of which some are set, so that others must be.
class VariableSet {
 public:
  // because: what is set ("SLURM_STEP_NUM_TASKS is 4"); advice: what to do
  // about an incomplete set.
  VariableSet(std::string because, std::string advice)
      : because_(std::move(because)), advice_(std::move(advice)) {}

  absl::StatusOr<std::string> Text(const char* name) const;
  absl::StatusOr<int> Int(const char* name, int low, int high = kAnyInt) const;
  // Of the variable that is missing.
  absl::Status Missing(const char* name) const;
  // `name` contradicts the others: "NAME PROBLEM, but BECAUSE: ADVICE".
  absl::Status Contradicts(absl::string_view name,
                           absl::string_view problem) const;

 private:
  const std::string because_;
  const std::string advice_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_LAUNCHER_ENVIRONMENT_H_
