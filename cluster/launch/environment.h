// SPDX-License-Identifier: Apache-2.0
//
// Reads environment variables that launchers set. Errors are INVALID_ARGUMENT
// and name the variable.
#ifndef CAPSTAN_CLUSTER_LAUNCH_ENVIRONMENT_H_
#define CAPSTAN_CLUSTER_LAUNCH_ENVIRONMENT_H_

#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace capstan {

// Returns nullopt if the variable is unset or empty.
absl::optional<std::string> Variable(const char* name);
inline bool IsSet(const char* name) { return Variable(name).has_value(); }

// "environment variable NAME PROBLEM".
absl::Status VariableError(absl::string_view name, absl::string_view problem);

// Returns an integer of at least `low` and below `high`; nullopt if the
// variable is unset or empty.
absl::StatusOr<absl::optional<int>> IntVariable(
    const char* name, int low, int high = std::numeric_limits<int>::max());

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_LAUNCH_ENVIRONMENT_H_
