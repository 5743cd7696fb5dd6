// SPDX-License-Identifier: Apache-2.0
#include "host/config/flag_overrides.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status.h"

namespace capstan {

absl::Status AsTyped(const absl::Status& status, const FlagOverrides& flags) {
  std::string message(status.message());
  for (const auto& [override, typed] : flags) {
    const std::string set = absl::StrCat("--set ", override);
    const std::string path = override.substr(0, override.find_first_of("+="));
    absl::StrReplaceAll(
        {{absl::StrCat(set, ": ", path, ": "), absl::StrCat(typed, ": ")},
         {set, typed}},
        &message);
  }
  return message == status.message() ? status : WithMessage(status, message);
}

}  // namespace capstan
