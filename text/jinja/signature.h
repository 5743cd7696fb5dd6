// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TEXT_JINJA_SIGNATURE_H_
#define CAPSTAN_TEXT_JINJA_SIGNATURE_H_

#include "absl/strings/string_view.h"
#include "text/jinja/value.h"

namespace capstan::jinja {

// The parameters of one of Python's or jinja2's functions, as Python checks
// them: what a call with others raises is an Error here, too.
struct Signature {
  // "width,first,blank"; "a,b/": they take no name; "*": any arguments.
  const char* parameters = "";
  int required = 0;  // how many have no default
};

// Throws Error, which names the function, unless the arguments fit.
void CheckArguments(const Signature& signature, absl::string_view function,
                    const Arguments& given);

}  // namespace capstan::jinja

#endif  // CAPSTAN_TEXT_JINJA_SIGNATURE_H_
