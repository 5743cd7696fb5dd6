// SPDX-License-Identifier: Apache-2.0
//
// Large JSON files from outside, parsed with simdjson.
#ifndef CAPSTAN_BASE_JSON_DOCUMENT_H_
#define CAPSTAN_BASE_JSON_DOCUMENT_H_

#include <simdjson.h>

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/json_numbers.h"

namespace capstan {

// Parses `json`. `readable`: bytes from json.data() on that may be read; the
// parser copies the text if these are too few. Numbers beyond 64 bits become
// floating-point. *root is valid until the next parse.
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
