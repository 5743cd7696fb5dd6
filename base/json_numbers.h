// SPDX-License-Identifier: Apache-2.0
//
// Python writes integers of any size (1000000000000000019884624838656 for "no
// limit"); our JSON libraries reject them even in fields that nobody reads.
#ifndef CAPSTAN_BASE_JSON_NUMBERS_H_
#define CAPSTAN_BASE_JSON_NUMBERS_H_

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace capstan {

// `json` with integers beyond 64 bits as floating-point and numbers beyond
// double as the largest double; nullopt if there are none. Invalid JSON stays
// invalid.
absl::optional<std::string> WithNumbersThatFit(absl::string_view json);

// Maximum bracket nesting of `json`: too deep would overflow the stack.
int JsonDepth(absl::string_view json);
constexpr int kMostJsonDepth = 512;

}  // namespace capstan

#endif  // CAPSTAN_BASE_JSON_NUMBERS_H_
