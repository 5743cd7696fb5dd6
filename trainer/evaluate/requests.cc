// SPDX-License-Identifier: Apache-2.0
#include "trainer/evaluate/requests.h"

#include <algorithm>
#include <ctime>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"
#include "text/jinja/template.h"

namespace capstan::evaluate {
namespace {

absl::StatusOr<std::vector<Document>> ListDocuments(const std::string& path,
                                                    const Json& json) {
  const Json* list = &json;
  if (json.is_object() && json.contains("data")) list = &json["data"];
  if (!list->is_array()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": must be a list of objects, or {\"data\": [..]}"));
  }
  std::vector<Document> documents;
  for (const Json& row : *list) {
    documents.push_back(
        {row, absl::StrCat(path, ", element ", documents.size())});
  }
  return documents;
}

absl::StatusOr<std::vector<Document>> LineDocuments(const std::string& path,
                                                    absl::string_view text) {
  std::vector<Document> documents;
  int64_t number = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    documents.push_back(
        {ParseJson<Json>(line), absl::StrCat(path, ":", number)});
  }
  return documents;
}

// A task's key as a function of a document.
class Field {
 public:
  // `value` is a column of `row`, the first document, or a template, or what
  // it says itself. A template that is one expression, {{..}}, has its value,
  // others have a text.
  static absl::StatusOr<Field> Make(const Task& task, const char* key,
                                    const Json& value, const Json& row) {
    Field field(absl::StrCat(task.path, ": ", key));
    if (!value.is_string()) {
      field.constant_ = value;
      return field;
    }
    const std::string text = value.get<std::string>();
    if (row.contains(text)) {
      field.column_ = text;
      return field;
    }
    std::string source = text;
    absl::string_view expression = absl::StripAsciiWhitespace(text);
    if (absl::ConsumePrefix(&expression, "{{") &&
        absl::ConsumeSuffix(&expression, "}}") &&
        !absl::StrContains(expression, "}}")) {
      field.is_value_ = true;
      source = absl::StrCat("{{ (", expression, ") | tojson }}");
    }
    // Unlike jinja, the harness keeps a line's end behind the last line.
    field.ends_line_ = absl::EndsWith(source, "\n");
    absl::StatusOr<std::unique_ptr<jinja::Template>> parsed =
        jinja::Template::Parse(source);
    CAPSTAN_RETURN_IF_ERROR(Annotate(parsed.status(), field.name_));
    field.template_ = *std::move(parsed);
    return field;
  }

  absl::StatusOr<Json> Of(const Document& document) const {
    if (!constant_.is_null()) return constant_;
    if (!column_.empty()) {
      const auto found = document.row.find(column_);
      if (found != document.row.end()) return *found;
      return absl::InvalidArgumentError(
          absl::StrCat(document.place, ": has no \"", column_, "\", which ",
                       name_, " names"));
    }
    const absl::StatusOr<jinja::Rendered> rendered =
        template_->Render(document.row, std::time(nullptr));
    if (!rendered.ok()) {
      return Annotate(Annotate(rendered.status(), name_), document.place);
    }
    if (!is_value_) {
      return Json(absl::StrCat(rendered->text, ends_line_ ? "\n" : ""));
    }
    const Json value = ParseJson<Json>(rendered->text);
    if (!value.is_discarded() && !value.is_null()) return value;
    return absl::InvalidArgumentError(absl::StrCat(
        document.place, ": ", name_, " gives nothing for this row"));
  }

  absl::StatusOr<std::string> Text(const Document& document) const {
    CAPSTAN_ASSIGN_OR_RETURN(const Json value, Of(document));
    return value.is_string() ? value.get<std::string>() : value.dump();
  }

 private:
  explicit Field(std::string name) : name_(std::move(name)) {}

  std::string name_;  // for errors
  Json constant_;
  std::string column_;
  std::shared_ptr<const jinja::Template> template_;
  bool is_value_ = false;
  bool ends_line_ = false;
};

int64_t Characters(absl::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (c & 0xC0) != 0x80; });
}

std::string AsText(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

class RequestMaker {
 public:
  static absl::StatusOr<RequestMaker> Make(const Task& task, const Json& row) {
    CAPSTAN_ASSIGN_OR_RETURN(
        Field text, Field::Make(task, "doc_to_text", task.doc_to_text, row));
    CAPSTAN_ASSIGN_OR_RETURN(
        Field target,
        Field::Make(task, "doc_to_target", task.doc_to_target, row));
    absl::optional<Field> choice;
    if (!task.doc_to_choice.is_null()) {
      CAPSTAN_ASSIGN_OR_RETURN(
          choice, Field::Make(task, "doc_to_choice", task.doc_to_choice, row));
    }
    return RequestMaker(task, std::move(text), std::move(target),
                        std::move(choice));
  }

  // Without the examples in front of the context.
  absl::StatusOr<Request> Ask(const Document& document) const {
    Request request;
    request.place = document.place;
    CAPSTAN_ASSIGN_OR_RETURN(request.context, text_.Text(document));
    CAPSTAN_ASSIGN_OR_RETURN(const Json target, target_.Of(document));
    std::vector<std::string> choices;
    if (choice_.has_value()) {
      CAPSTAN_ASSIGN_OR_RETURN(const Json list, choice_->Of(document));
      if (!list.is_array() || list.empty()) {
        return absl::InvalidArgumentError(absl::StrCat(
            document.place, ": doc_to_choice is no list: ",
            list.dump(-1, ' ', false, Json::error_handler_t::replace)));
      }
      for (const Json& one : list) choices.push_back(AsText(one));
    }
    CAPSTAN_RETURN_IF_ERROR(SetTarget(target, choices, &request));
    if (task_->output == TaskOutput::kMultipleChoice) {
      for (const std::string& one : choices) {
        request.continuations.push_back(task_->target_delimiter + one);
        request.characters.push_back(Characters(one));
      }
    } else if (task_->output == TaskOutput::kLogLikelihood) {
      // As it is: the harness puts no delimiter there.
      request.continuations.push_back(request.references.front());
    }
    return request;
  }

  // The request with its right answer.
  static std::string Shown(const Task& task, const Request& request) {
    return absl::StrCat(request.context, task.target_delimiter,
                        request.references.front(), task.fewshot_delimiter);
  }

 private:
  RequestMaker(const Task& task, Field text, Field target,
               absl::optional<Field> choice)
      : task_(&task),
        text_(std::move(text)),
        target_(std::move(target)),
        choice_(std::move(choice)) {}

  absl::Status SetTarget(const Json& target,
                         const std::vector<std::string>& choices,
                         Request* request) const {
    std::vector<Json> targets = {target};
    if (target.is_array()) targets.assign(target.begin(), target.end());
    for (const Json& one : targets) {
      if (choices.empty()) {
        request->references.push_back(AsText(one));
        continue;
      }
      int64_t index = -1;
      if (one.is_boolean()) {
        index = one.get<bool>() ? 1 : 0;
      } else if (const auto number = JsonInteger(one); number.has_value()) {
        index = *number;
      } else if (one.is_string()) {
        const std::string text = one.get<std::string>();
        const auto found = std::find(choices.begin(), choices.end(), text);
        if (found != choices.end()) {
          index = found - choices.begin();
        } else if (!absl::SimpleAtoi(text, &index)) {
          index = -1;
        }
      }
      if (index < 0 || index >= static_cast<int64_t>(choices.size())) {
        return absl::InvalidArgumentError(absl::StrCat(
            request->place, ": doc_to_target is ",
            one.dump(-1, ' ', false, Json::error_handler_t::replace),
            ", which is none of the ", choices.size(), " choices"));
      }
      request->gold.push_back(index);
      request->references.push_back(choices[index]);
    }
    if (!request->references.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(request->place, ": doc_to_target is an empty list"));
  }

  const Task* task_;
  Field text_;
  Field target_;
  absl::optional<Field> choice_;
};

}  // namespace

absl::StatusOr<std::vector<Document>> ReadDocuments(const std::string& path) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  std::vector<Document> documents;
  const Json whole =
      absl::EndsWith(path, ".jsonl") ? Json() : ParseJson<Json>(text);
  if (whole.is_array() || (whole.is_object() && whole.contains("data"))) {
    CAPSTAN_ASSIGN_OR_RETURN(documents, ListDocuments(path, whole));
  } else {
    CAPSTAN_ASSIGN_OR_RETURN(documents, LineDocuments(path, text));
  }
  for (const Document& document : documents) {
    if (!document.row.is_object()) {
      return absl::InvalidArgumentError(
          absl::StrCat(document.place, ": isn't a JSON object"));
    }
  }
  if (documents.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": has no rows"));
  }
  return documents;
}

absl::StatusOr<std::vector<Request>> MakeRequests(
    const Task& task, const std::vector<Document>& documents,
    const std::vector<Document>& examples) {
  std::vector<Request> requests;
  if (documents.empty()) return requests;
  CAPSTAN_ASSIGN_OR_RETURN(const RequestMaker maker,
                           RequestMaker::Make(task, documents.front().row));
  const int64_t shots = task.num_fewshot;
  std::vector<std::string> shown;  // of the first examples, as many as needed
  for (const Document& document : documents) {
    CAPSTAN_ASSIGN_OR_RETURN(Request request, maker.Ask(document));
    std::string context = task.description;
    int64_t given = 0;
    for (size_t i = 0; i < examples.size() && given < shots; ++i) {
      if (i == shown.size()) {
        CAPSTAN_ASSIGN_OR_RETURN(const Request example, maker.Ask(examples[i]));
        shown.push_back(RequestMaker::Shown(task, example));
      }
      if (examples[i].row == document.row) continue;
      absl::StrAppend(&context, shown[i]);
      ++given;
    }
    if (given < shots) {
      return absl::InvalidArgumentError(absl::StrCat(
          task.path, ": num_fewshot is ", shots, ", but there are only ", given,
          " other rows to show: name more with --fewshot_data=FILE"));
    }
    request.context = absl::StrCat(context, request.context);
    requests.push_back(std::move(request));
  }
  return requests;
}

}  // namespace capstan::evaluate
