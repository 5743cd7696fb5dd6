// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_INFERENCE_EVALUATE_ROW_FIELD_H_
#define CAPSTAN_INFERENCE_EVALUATE_ROW_FIELD_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "inference/evaluate/documents.h"
#include "inference/evaluate/task.h"
#include "text/jinja/template.h"

namespace capstan::evaluate {

enum class FieldKind {
  kText,    // of a question
  kTarget,  // an answer: also a list in brackets
  kChoice,  // always a list
  kPlain,   // a text
};

// A task's key as a function of a row, with the harness's rules for what a
// template's text stands for (lm_eval/api/task.py, doc_to_text and its like).
// An error names the row's place and the key.
using FieldOfRow =
    std::function<absl::StatusOr<Json>(const Document& document)>;

// `name` is for errors. `field` holds a column of `columns`, or a template, or
// what it says itself; empty gives null. With choices, digits are a number.
absl::StatusOr<FieldOfRow> MakeField(std::string name, FieldKind kind,
                                     const RowField& field, const Json& columns,
                                     bool has_choices);

// Renders `source` as the harness does, which doesn't drop line ends and spaces
// around blocks as chat templates do.
absl::StatusOr<std::unique_ptr<jinja::Template>> ParseRowTemplate(
    absl::string_view source);

// Python's str().
std::string PythonText(const Json& value);

}  // namespace capstan::evaluate

#endif  // CAPSTAN_INFERENCE_EVALUATE_ROW_FIELD_H_
