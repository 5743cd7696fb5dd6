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

}  // namespace

std::string PythonText(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_null()) return "None";
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  return value.dump(-1, ' ', /*ensure_ascii=*/false,
                    Json::error_handler_t::replace);
}

absl::StatusOr<std::unique_ptr<jinja::Template>> ParseRowTemplate(
    absl::string_view source) {
  return jinja::Template::Parse(source, jinja::Limits(),
                                jinja::WhiteSpace::kKept);
}

absl::StatusOr<FieldOfRow> FieldOfRow::Make(std::string name, Kind kind,
                                            const RowField& field,
                                            const Json& columns,
                                            bool has_choices) {
  FieldOfRow made;
  made.name_ = std::move(name);
  made.kind_ = kind;
  made.has_choices_ = has_choices;
  made.field_ = field;
  if (field.function != nullptr || !field.value.is_string()) return made;
  const std::string text = field.value.get<std::string>();
  made.is_column_ = columns.contains(text);
  if (made.is_column_) return made;
  absl::StatusOr<std::unique_ptr<jinja::Template>> parsed =
      ParseRowTemplate(text);
  CAPSTAN_RETURN_IF_ERROR(Annotate(parsed.status(), made.name_));
  made.template_ = *std::move(parsed);
  return made;
}

absl::StatusOr<Json> FieldOfRow::Of(const Document& document) const {
  absl::StatusOr<Json> value = Value(document.row);
  if (!value.ok()) {
    return Annotate(Annotate(value.status(), name_), document.place);
  }
  return value;
}

absl::StatusOr<Json> FieldOfRow::Value(const Json& row) const {
  if (field_.function != nullptr) return field_.function->Apply(row);
  if (is_column_) {
    const std::string column = field_.value.get<std::string>();
    const auto found = row.find(column);
    if (found != row.end()) return *found;
    return absl::InvalidArgumentError(
        absl::StrCat("the row has no \"", column, "\""));
  }
  if (template_ == nullptr) {
    // Choices may have names, which are only for the reader.
    if (kind_ != kChoice || !field_.value.is_object()) return field_.value;
    Json list = Json::array();
    for (const auto& choice : field_.value) list.push_back(choice);
    return list;
  }
  CAPSTAN_ASSIGN_OR_RETURN(jinja::Rendered rendered,
                           template_->Render(row, std::time(nullptr)));
  return ValueOfText(std::move(rendered.text));
}

absl::StatusOr<Json> FieldOfRow::ValueOfText(std::string text) const {
  if (kind_ == kPlain) return Json(text);
  if (kind_ == kChoice) {
    if (absl::optional<Json> list = PythonLiteral(text); list.has_value()) {
      return *std::move(list);
    }
    return absl::InvalidArgumentError(
        absl::StrCat("gives no list that Python could read: ", text));
  }
  if (has_choices_ && IsDigits(text)) return Json(Number(text));
  if (kind_ == kTarget && text.size() >= 2 && text.front() == '[' &&
      text.back() == ']') {
    if (absl::optional<Json> list = PythonLiteral(text); list.has_value()) {
      return *std::move(list);
    }
  }
  return Json(text);
}

}  // namespace capstan::evaluate
