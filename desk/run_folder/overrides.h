// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_RUN_FOLDER_OVERRIDES_H_
#define CAPSTAN_DESK_RUN_FOLDER_OVERRIDES_H_

#include <initializer_list>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace capstan {

// Of --set "FIELD=VALUE" or "FIELD+=VALUE" the field.
absl::string_view FieldOfOverride(absl::string_view text);

// An error if --set names a field of `own`, those that `command` sets itself.
absl::Status CheckOverrides(const std::vector<std::string>& overrides,
                            absl::string_view command,
                            std::initializer_list<absl::string_view> own);

}  // namespace capstan

#endif  // CAPSTAN_DESK_RUN_FOLDER_OVERRIDES_H_
