// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_CHAT_TEMPLATE_JINJA_TEXT_H_
#define CAPSTAN_TEXT_CHAT_TEMPLATE_JINJA_TEXT_H_

#include <string>

#include "absl/strings/string_view.h"

namespace capstan {

// Normalizes a Jinja template: templates that differ only in quotes, white
// space, line breaks, comments, a.b versus a['b'], how output is split and the
// like get the same text. Substitutes the variables bos_token and eos_token.
// White space follows transformers' settings (trim_blocks, lstrip_blocks). Text
// that isn't Jinja is returned in some form, too.
//
// Not an engine: expressions are compared as text.
std::string NormalJinja(absl::string_view text, absl::string_view bos,
                        absl::string_view eos);

}  // namespace capstan

#endif  // CAPSTAN_TEXT_CHAT_TEMPLATE_JINJA_TEXT_H_
