// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_CHAT_TEMPLATE_JINJA_TEXT_H_
#define CAPSTAN_TEXT_CHAT_TEMPLATE_JINJA_TEXT_H_

#include <string>

#include "absl/strings/string_view.h"

namespace capstan {

// A jinja template in one spelling: two that differ in quotes, white space,
// line breaks, comments, a.b for a['b'], where an output is cut into pieces,
// and the like have the same. What the variables bos_token and eos_token stand
// for is put in. White space is as transformers renders (trim_blocks,
// lstrip_blocks). A text that isn't jinja has some spelling, too.
//
// Not an engine: what a template computes is compared by its letters.
std::string NormalJinja(absl::string_view text, absl::string_view bos,
                        absl::string_view eos);

}  // namespace capstan

#endif  // CAPSTAN_TEXT_CHAT_TEMPLATE_JINJA_TEXT_H_
