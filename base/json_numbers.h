// SPDX-License-Identifier: Apache-2.0
//
// JSON sets no bound to its numbers, and Python writes integers of any size
// (1000000000000000019884624838656 for "no limit"). The libraries that parse it
// here refuse what they can't hold, even where nobody reads it.
#ifndef CAPSTAN_BASE_JSON_NUMBERS_H_
#define CAPSTAN_BASE_JSON_NUMBERS_H_

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace capstan {

// `json` with every number that is too large spelled so that parsers take it:
// an integer beyond 64 bits as a floating-point number, one beyond doubles as
// the greatest double. nullopt if it holds none. Strings stay as they are, and
// text that isn't JSON doesn't become JSON.
absl::optional<std::string> WithNumbersThatFit(absl::string_view json);

// How deep the brackets of `json` nest. Objects are copied and written by
// recursion, so that a file nested too deeply would end the process.
int JsonDepth(absl::string_view json);
constexpr int kMostJsonDepth = 512;

}  // namespace capstan

#endif  // CAPSTAN_BASE_JSON_NUMBERS_H_
