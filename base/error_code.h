// SPDX-License-Identifier: Apache-2.0
//
// What kind of mistake an error is about: a stable name, such as
// "config/unknown-field", that `trainer explain` has a page for
// (docs/troubleshooting.md, whose headings are the codes).
#ifndef CAPSTAN_BASE_ERROR_CODE_H_
#define CAPSTAN_BASE_ERROR_CODE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace capstan {

// `status` with `code`, unless it is OK or has one, or `code` is "". Annotate
// keeps it.
absl::Status WithCode(absl::Status status, absl::string_view code);

// "" if it has none.
std::string CodeOf(const absl::Status& status);

// The message to print: with the code behind it, "no such file [config/file]".
std::string TextWithCode(const absl::Status& status);

}  // namespace capstan

#endif  // CAPSTAN_BASE_ERROR_CODE_H_
