// SPDX-License-Identifier: Apache-2.0
//
// The tables behind known_functions.h. To add a function: run the trainer on a
// task with it, which says its digests (IsFormOf); write what it does of a row
// as a template or here in C++; and compare with what Python gives for rows of
// all kinds that it tells apart.
#ifndef CAPSTAN_INFERENCE_EVALUATE_FUNCTION_FORMS_H_
#define CAPSTAN_INFERENCE_EVALUATE_FUNCTION_FORMS_H_

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "inference/evaluate/known_functions.h"
#include "inference/evaluate/python_source.h"

namespace capstan::evaluate {

using RowCode =
    absl::StatusOr<nlohmann::ordered_json> (*)(const nlohmann::ordered_json&);

struct RowForm {
  enum Kind {
    kText,   // a template, whose text is the value
    kValue,  // an expression of templates, whose value it is
    kJson,   // a template that writes JSON
    kCode,
  };
  const char* name;  // for whoever reads the table
  uint64_t digest;
  Kind kind;
  // Variables are the row's columns, `row`, `constants` (of the function's
  // file, and its arguments) and `function`, the name that the task gives.
  const char* source;
  RowCode code;
};
absl::Span<const RowForm> RowForms();
absl::StatusOr<std::shared_ptr<const RowFunction>> NewRowFunction(
    const RowForm& form, const nlohmann::ordered_json& constants,
    const std::string& function);

struct ResultForm {
  const char* name;
  uint64_t digest;
  ResultFunction function;
};
absl::Span<const ResultForm> ResultForms();

struct AggregationForm {
  const char* name;
  uint64_t digest;
  const char* aggregation;
};
absl::Span<const AggregationForm> AggregationForms();

// Whether a form of this digest and source (null: it is in C++) is one of the
// function. A source that mentions `constants` is a form for all of them, so
// `digest` is that of the code, or of the inner function's; any other is a form
// for those that it was written for: `digest` is the one with constants.
bool IsFormOf(uint64_t digest, const char* source,
              const PythonFunction& function);

// In C++, by what it is a form of.
absl::StatusOr<nlohmann::ordered_json> HellaswagRow(
    const nlohmann::ordered_json& row);
absl::StatusOr<nlohmann::ordered_json> OkapiArcRow(
    const nlohmann::ordered_json& row);
absl::StatusOr<nlohmann::ordered_json> WikitextPage(
    const nlohmann::ordered_json& row);
absl::StatusOr<nlohmann::ordered_json> C4Text(
    const nlohmann::ordered_json& row);
absl::StatusOr<nlohmann::ordered_json> WebQuestionsChoices(
    const nlohmann::ordered_json& row);
absl::StatusOr<nlohmann::ordered_json> WebQuestionsTarget(
    const nlohmann::ordered_json& row);
absl::StatusOr<nlohmann::ordered_json> RaceText(
    const nlohmann::ordered_json& row);
absl::StatusOr<nlohmann::ordered_json> RaceTarget(
    const nlohmann::ordered_json& row);
absl::StatusOr<nlohmann::ordered_json> RaceChoices(
    const nlohmann::ordered_json& row);
absl::StatusOr<nlohmann::ordered_json> CoqaTarget(
    const nlohmann::ordered_json& row);
absl::StatusOr<nlohmann::ordered_json> MathQaChoices(
    const nlohmann::ordered_json& row);

// A row's text in a column; INVALID_ARGUMENT without one.
absl::StatusOr<std::string> TextColumn(const nlohmann::ordered_json& row,
                                       const char* column);

}  // namespace capstan::evaluate

#endif  // CAPSTAN_INFERENCE_EVALUATE_FUNCTION_FORMS_H_
