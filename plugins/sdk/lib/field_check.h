// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_LIB_FIELD_CHECK_H_
#define CAPSTAN_PLUGINS_SDK_LIB_FIELD_CHECK_H_

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status.h"

namespace capstan {

// OK if `good`; else a FieldError: "must be RULE, is VALUE".
template <typename T>
absl::Status CheckField(bool good, absl::string_view field,
                        absl::string_view rule, const T& value) {
  if (good) return absl::OkStatus();
  return FieldError(field, absl::StrCat("must be ", rule, ", is ", value));
}

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_LIB_FIELD_CHECK_H_
