// SPDX-License-Identifier: Apache-2.0
//
// The tables behind known_functions.h. To add a function: run the trainer on a
// task with it, which says its digests (IsFormOf); write what it does of a row
// as a template (row_forms.yaml) or in C++ (row_code.cc); and compare with what
// Python gives for rows of all kinds that it tells apart.
#ifndef CAPSTAN_INFERENCE_EVALUATE_FUNCTION_FORMS_H_
#define CAPSTAN_INFERENCE_EVALUATE_FUNCTION_FORMS_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "inference/evaluate/known_functions.h"
#include "inference/evaluate/python_source.h"

namespace capstan::evaluate {

struct RowForm {
  enum Kind {
    kText,   // a template, whose text is the value
    kValue,  // an expression of templates, whose value it is
    kJson,   // a template that writes JSON
    kCode,
  };
  std::string name;  // for whoever reads the table
  uint64_t digest = 0;
  Kind kind = kCode;
  // Variables are the row's columns, `row`, `constants` (of the function's
  // file, and its arguments) and `function`, the name that the task gives.
  std::string source;
  RowFunction code;
};
// All: row_forms.yaml and CodeForms.
absl::Span<const RowForm> RowForms();
absl::Span<const RowForm> CodeForms();
absl::StatusOr<RowFunction> NewRowFunction(
    const RowForm& form, const nlohmann::ordered_json& constants,
    const std::string& function);

struct ResultForm {
  const char* name;
  uint64_t digest;
  ResultFunction function;
};
absl::Span<const ResultForm> ResultForms();

// Whether a form of this digest and source ("": it is in C++) is one of the
// function. A source that mentions `constants` is a form for all of them, so
// `digest` is that of the code, or of the inner function's; any other is a form
// for those that it was written for: `digest` is the one with constants.
bool IsFormOf(uint64_t digest, absl::string_view source,
              const PythonFunction& function);

// What coqa's doc_to_target gives.
absl::StatusOr<nlohmann::ordered_json> CoqaTarget(
    const nlohmann::ordered_json& row);

// A row's text in a column; INVALID_ARGUMENT without one.
absl::StatusOr<std::string> TextColumn(const nlohmann::ordered_json& row,
                                       const char* column);

}  // namespace capstan::evaluate

#endif  // CAPSTAN_INFERENCE_EVALUATE_FUNCTION_FORMS_H_
