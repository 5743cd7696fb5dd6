// SPDX-License-Identifier: Apache-2.0
//
// Parts of a JSON text as they are written: parsers round large integers.
#ifndef CAPSTAN_BASE_JSON_PARTS_H_
#define CAPSTAN_BASE_JSON_PARTS_H_

#include <vector>

#include "absl/strings/string_view.h"

namespace capstan {

// The text of the value of `key`, which needs no escapes, in `object`, the text
// of a valid JSON object; "" if it has no such key. Of several the first.
absl::string_view JsonMember(absl::string_view object, absl::string_view key);
// The texts of the items of a valid JSON list.
std::vector<absl::string_view> JsonItems(absl::string_view list);

}  // namespace capstan

#endif  // CAPSTAN_BASE_JSON_PARTS_H_
