// SPDX-License-Identifier: Apache-2.0
//
// JSON doesn't bound its numbers, and Python writes integers of any size
// (1000000000000000019884624838656 for "no limit"). Our JSON libraries reject
// numbers they can't represent, even in fields that nobody reads.
#ifndef CAPSTAN_BASE_JSON_NUMBERS_H_
#define CAPSTAN_BASE_JSON_NUMBERS_H_

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace capstan {

// `json` with too large numbers rewritten so that parsers accept them: integers
// beyond 64 bits as floating-point, numbers beyond double as the largest
// double. nullopt if there are none. Strings are left alone, and invalid JSON
// stays invalid.
absl::optional<std::string> WithNumbersThatFit(absl::string_view json);

// Maximum bracket nesting of `json`. Objects are copied and written
// recursively, so a file nested too deeply would overflow the stack.
int JsonDepth(absl::string_view json);
constexpr int kMostJsonDepth = 512;

}  // namespace capstan

#endif  // CAPSTAN_BASE_JSON_NUMBERS_H_
