// SPDX-License-Identifier: Apache-2.0
#include "inference/evaluate/row_field.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/status.h"
#include "inference/evaluate/python_literal.h"

namespace capstan::evaluate {
namespace {

// Long numbers stay texts.
bool IsDigits(absl::string_view text) {
  return !text.empty() && text.size() < 19 &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isdigit(static_cast<unsigned char>(c));
         });
}

int64_t Number(absl::string_view digits) {
  int64_t number = 0;
  (void)absl::SimpleAtoi(digits, &number);
  return number;
}

// What the text of a template stands for.
absl::StatusOr<Json> ValueOfText(FieldKind kind, bool has_choices,
                                 const std::string& text) {
  if (kind == FieldKind::kPlain) return Json(text);
  if (kind == FieldKind::kChoice) {
    if (absl::optional<Json> list = PythonLiteral(text); list.has_value()) {
      return *std::move(list);
    }
    return absl::InvalidArgumentError(
        absl::StrCat("gives no list that Python could read: ", text));
  }
  if (has_choices && IsDigits(text)) return Json(Number(text));
  if (kind == FieldKind::kTarget && text.size() >= 2 && text.front() == '[' &&
      text.back() == ']') {
    if (absl::optional<Json> list = PythonLiteral(text); list.has_value()) {
      return *std::move(list);
    }
  }
  return Json(text);
}

absl::StatusOr<RowFunction> ValueOfRow(FieldKind kind, const RowField& field,
                                       const Json& columns, bool has_choices) {
  if (field.function != nullptr) return field.function;
  Json value = field.value;
  // Choices may have names, which are only for the reader.
  if (kind == FieldKind::kChoice && value.is_object()) {
    value = Json::array();
    for (const auto& choice : field.value) value.push_back(choice);
  }
  if (!value.is_string()) {
    return RowFunction(
        [value](const Json&) -> absl::StatusOr<Json> { return value; });
  }
  const std::string text = value.get<std::string>();
  if (columns.contains(text)) {
    return RowFunction([text](const Json& row) -> absl::StatusOr<Json> {
      const auto found = row.find(text);
      if (found != row.end()) return *found;
      return absl::InvalidArgumentError(
          absl::StrCat("the row has no \"", text, "\""));
    });
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::shared_ptr<const jinja::Template> source,
                           ParseRowTemplate(text));
  return RowFunction([=](const Json& row) -> absl::StatusOr<Json> {
    CAPSTAN_ASSIGN_OR_RETURN(const jinja::Rendered rendered,
                             source->Render(row, std::time(nullptr)));
    return ValueOfText(kind, has_choices, rendered.text);
  });
}

}  // namespace

std::string PythonText(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_null()) return "None";
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  return JsonText(value);
}

absl::StatusOr<std::unique_ptr<jinja::Template>> ParseRowTemplate(
    absl::string_view source) {
  return jinja::Template::Parse(source, jinja::Limits(),
                                jinja::WhiteSpace::kKept);
}

absl::StatusOr<FieldOfRow> MakeField(std::string name, FieldKind kind,
                                     const RowField& field, const Json& columns,
                                     bool has_choices) {
  absl::StatusOr<RowFunction> value =
      ValueOfRow(kind, field, columns, has_choices);
  CAPSTAN_RETURN_IF_ERROR(Annotate(value.status(), name));
  return FieldOfRow([name = std::move(name), value = *std::move(value)](
                        const Document& document) -> absl::StatusOr<Json> {
    absl::StatusOr<Json> of_row = value(document.row);
    if (of_row.ok()) return of_row;
    return Annotate(Annotate(of_row.status(), name), document.place);
  });
}

}  // namespace capstan::evaluate
