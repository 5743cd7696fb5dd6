// SPDX-License-Identifier: Apache-2.0
#include "desk/run_folder/overrides.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace capstan {

absl::string_view FieldOfOverride(absl::string_view text) {
  return text.substr(0, text.find_first_of("+="));
}

absl::Status CheckOverrides(const std::vector<std::string>& overrides,
                            absl::string_view command,
                            std::initializer_list<absl::string_view> own) {
  for (const std::string& text : overrides) {
    for (const absl::string_view field : own) {
      if (FieldOfOverride(text) != field) continue;
      return FieldError("--set", absl::StrCat(field, " is ", command,
                                              "'s own to set: leave it out"));
    }
  }
  return absl::OkStatus();
}

}  // namespace capstan
