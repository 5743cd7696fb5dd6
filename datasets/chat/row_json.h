// SPDX-License-Identifier: Apache-2.0
//
// Values of a row's JSON, with errors that name the key.
#ifndef CAPSTAN_DATASETS_CHAT_ROW_JSON_H_
#define CAPSTAN_DATASETS_CHAT_ROW_JSON_H_

#include <simdjson.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace capstan {
namespace chat {

// INVALID_ARGUMENT.
absl::Status Bad(const std::string& problem);

// "a list", for errors.
const char* TypeText(const simdjson::dom::element& value);

bool Has(const simdjson::dom::object& row, const char* key);

absl::Status Text(const simdjson::dom::object& row, const char* key,
                  absl::string_view* out);
// The same; "" where the row has no such key, or null.
absl::Status OptionalText(const simdjson::dom::object& row, const char* key,
                          absl::string_view* out);
// A list that isn't empty.
absl::Status List(const simdjson::dom::object& row, const char* key,
                  simdjson::dom::array* out);

}  // namespace chat
}  // namespace capstan

#endif  // CAPSTAN_DATASETS_CHAT_ROW_JSON_H_
