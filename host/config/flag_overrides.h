// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_HOST_CONFIG_FLAG_OVERRIDES_H_
#define CAPSTAN_HOST_CONFIG_FLAG_OVERRIDES_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace capstan {

// Overrides of a config that stand for flags, and what was typed:
// {"launch.nodes=2", "--nodes=2"}.
using FlagOverrides = std::vector<std::pair<std::string, std::string>>;

// `status` with what was typed where its message names an override.
absl::Status AsTyped(const absl::Status& status, const FlagOverrides& flags);

}  // namespace capstan

#endif  // CAPSTAN_HOST_CONFIG_FLAG_OVERRIDES_H_
