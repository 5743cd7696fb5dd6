// SPDX-License-Identifier: Apache-2.0
//
// A HistoryOrigin as JSON, and as an environment.
#ifndef CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_DARKROOM_HISTORY_ORIGIN_H_
#define CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_DARKROOM_HISTORY_ORIGIN_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "plugins/algorithm_distillation/darkroom/history_file.h"
#include "plugins/algorithm_distillation/environment.h"

namespace capstan::darkroom {

// The file's attribute, a string of JSON.
inline constexpr char kOriginName[] = "capstan";

std::string OriginToJson(const HistoryOrigin& origin);

// `path` is the file's. INVALID_ARGUMENT if a key is missing or can't be.
absl::StatusOr<HistoryOrigin> OriginFromJson(const std::string& path,
                                             const std::string& text);

// The environment that a plugin makes of its config. Errors: CreatePart's, and
// CheckEnvironment's.
absl::StatusOr<std::shared_ptr<const Environment>> EnvironmentOfPlugin(
    const std::string& type, const std::string& config);

// `status` as an error of the field "environment", or of a field in it.
absl::Status InEnvironmentField(const absl::Status& status);

// The environment that the file says. Errors: as above, and if it has another
// horizon.
absl::StatusOr<std::shared_ptr<const Environment>> EnvironmentOf(
    const HistoryOrigin& origin);

}  // namespace capstan::darkroom

#endif  // CAPSTAN_PLUGINS_ALGORITHM_DISTILLATION_DARKROOM_HISTORY_ORIGIN_H_
