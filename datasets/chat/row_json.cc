// SPDX-License-Identifier: Apache-2.0
#include "datasets/chat/row_json.h"

#include "absl/strings/str_cat.h"

namespace capstan {
namespace chat {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::element_type;
using simdjson::dom::object;

absl::Status Bad(const std::string& problem) {
  return absl::InvalidArgumentError(problem);
}

const char* TypeText(const element& value) {
  switch (value.type()) {
    case element_type::ARRAY:
      return "a list";
    case element_type::OBJECT:
      return "an object";
    case element_type::STRING:
      return "a text";
    case element_type::BOOL:
      return "true or false";
    case element_type::NULL_VALUE:
      return "null";
    default:
      return "a number";
  }
}

bool Has(const object& row, const char* key) {
  return row.at_key(key).error() == simdjson::SUCCESS;
}

absl::Status Text(const object& row, const char* key, absl::string_view* out) {
  element value;
  if (row.at_key(key).get(value) != simdjson::SUCCESS) {
    return Bad(absl::StrCat("has no \"", key, "\""));
  }
  std::string_view text;
  if (value.get(text) != simdjson::SUCCESS) {
    return Bad(
        absl::StrCat("\"", key, "\" is ", TypeText(value), ", not a text"));
  }
  *out = absl::string_view(text.data(), text.size());
  return absl::OkStatus();
}

absl::Status OptionalText(const object& row, const char* key,
                          absl::string_view* out) {
  *out = "";
  element value;
  if (row.at_key(key).get(value) != simdjson::SUCCESS || value.is_null()) {
    return absl::OkStatus();
  }
  return Text(row, key, out);
}

absl::Status List(const object& row, const char* key, array* out) {
  element value;
  if (row.at_key(key).get(value) != simdjson::SUCCESS) {
    return Bad(absl::StrCat("has no \"", key, "\""));
  }
  if (value.get(*out) != simdjson::SUCCESS) {
    return Bad(
        absl::StrCat("\"", key, "\" is ", TypeText(value), ", not a list"));
  }
  if (out->size() == 0) return Bad(absl::StrCat("\"", key, "\" is empty"));
  return absl::OkStatus();
}

}  // namespace chat
}  // namespace capstan
