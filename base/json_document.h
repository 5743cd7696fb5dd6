// SPDX-License-Identifier: Apache-2.0
//
// JSON that others wrote, as simdjson's elements: for large files.
#ifndef CAPSTAN_BASE_JSON_DOCUMENT_H_
#define CAPSTAN_BASE_JSON_DOCUMENT_H_

#include <simdjson.h>

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/json_numbers.h"

namespace capstan {

// Parses `json`, of which `readable` bytes are there from json.data() on (the
// parser looks at a few behind the end; where they aren't there, it copies the
// text). Numbers may be of any size: those beyond 64 bits are floating-point
// numbers. *root is the parser's until it parses again.
inline simdjson::error_code ParseJsonDocument(absl::string_view json,
                                              size_t readable,
                                              simdjson::dom::parser* parser,
                                              simdjson::dom::element* root) {
  const bool copy = readable < json.size() + simdjson::SIMDJSON_PADDING;
  const simdjson::error_code error =
      parser->parse(json.data(), json.size(), copy).get(*root);
  if (error == simdjson::SUCCESS) return error;
  const absl::optional<std::string> fitting = WithNumbersThatFit(json);
  return fitting.has_value() ? parser->parse(*fitting).get(*root) : error;
}

}  // namespace capstan

#endif  // CAPSTAN_BASE_JSON_DOCUMENT_H_
