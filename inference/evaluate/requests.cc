// SPDX-License-Identifier: Apache-2.0
#include "inference/evaluate/requests.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/json.h"
#include "base/python_random.h"
#include "base/status.h"
#include "inference/evaluate/row_field.h"

namespace capstan::evaluate {
namespace {

// The harness's own.
constexpr uint32_t kFewshotSeed = 1234;

bool Spaced(char c) {
  return absl::ascii_isspace(static_cast<unsigned char>(c));
}

// Whether two texts need a delimiter between them.
bool NeedsDelimiter(absl::string_view before, absl::string_view after) {
  return !before.empty() && !after.empty() && !Spaced(before.back()) &&
         !Spaced(after.front());
}

// What a row says by a format.
struct Written {
  Json text;
  Json target;
  std::vector<std::string> choices;
  std::string prefix;
};

// A template looks a row's label up by index(), whose error doesn't say that.
absl::Status WithoutLabel(const absl::Status& status) {
  if (!absl::EndsWith(status.message(), "index: not found")) return status;
  return WithMessage(
      status, absl::StrCat(status.message(),
                           ": the row's label isn't among the choices that "
                           "doc_to_target looks it up in: mend the row, or "
                           "the list"));
}

// The fields of a format, as functions of rows.
class RowWriter {
 public:
  static absl::StatusOr<RowWriter> Make(const std::string& path,
                                        const RowFormat& format,
                                        const Json& columns) {
    const bool has_choices = !format.choice.empty();
    const auto make = [&](const char* key, FieldKind kind,
                          const RowField& field) {
      return MakeField(absl::StrCat(path, ": ", key), kind, field, columns,
                       has_choices);
    };
    RowWriter writer;
    writer.has_choices_ = has_choices;
    CAPSTAN_ASSIGN_OR_RETURN(
        writer.text_, make("doc_to_text", FieldKind::kText, format.text));
    CAPSTAN_ASSIGN_OR_RETURN(
        writer.target_,
        make("doc_to_target", FieldKind::kTarget, format.target));
    CAPSTAN_ASSIGN_OR_RETURN(
        writer.choice_,
        make("doc_to_choice", FieldKind::kChoice, format.choice));
    CAPSTAN_ASSIGN_OR_RETURN(
        writer.prefix_, make("gen_prefix", FieldKind::kPlain, format.prefix));
    return writer;
  }

  absl::StatusOr<Written> Write(const Document& document) const {
    Written written;
    CAPSTAN_ASSIGN_OR_RETURN(written.text, text_(document));
    const absl::StatusOr<Json> target = target_(document);
    if (!target.ok()) return WithoutLabel(target.status());
    written.target = *target;
    CAPSTAN_ASSIGN_OR_RETURN(const Json prefix, prefix_(document));
    if (!prefix.is_null()) written.prefix = PythonText(prefix);
    if (!has_choices_) return written;
    CAPSTAN_ASSIGN_OR_RETURN(const Json list, choice_(document));
    if (!list.is_array() || list.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          document.place, ": doc_to_choice is no list: ", PythonText(list)));
    }
    for (const Json& one : list) written.choices.push_back(PythonText(one));
    return written;
  }

 private:
  bool has_choices_ = false;
  FieldOfRow text_, target_, choice_, prefix_;
};

absl::Status BadTarget(const std::string& place, const Json& target,
                       size_t choices) {
  return absl::InvalidArgumentError(
      absl::StrCat(place, ": doc_to_target is ", JsonText(target),
                   ", which is none of the ", choices, " choices"));
}

// The choice that `target` names by its place or its text.
absl::StatusOr<int64_t> ChoiceOf(const Json& target,
                                 const std::vector<std::string>& choices,
                                 const std::string& place) {
  int64_t index = -1;
  if (target.is_boolean()) {
    index = target.get<bool>() ? 1 : 0;
  } else if (const auto number = JsonInteger(target); number.has_value()) {
    index = *number;
  } else if (target.is_string()) {
    const auto found =
        std::find(choices.begin(), choices.end(), target.get<std::string>());
    if (found != choices.end()) index = found - choices.begin();
  }
  if (index >= 0 && index < static_cast<int64_t>(choices.size())) return index;
  return BadTarget(place, target, choices.size());
}

// A question with its prefix and, for examples, its answer.
std::string Turn(const std::string& text, const std::string& prefix,
                 const absl::optional<std::string>& answer,
                 const RowFormat& format) {
  const bool answered = answer.has_value() && !answer->empty();
  const bool delimited =
      prefix.empty() ? answered : NeedsDelimiter(text, prefix);
  std::string turn =
      absl::StrCat(text, delimited ? format.target_delimiter : "", prefix);
  if (!answered) return turn;
  return absl::StrCat(turn, NeedsDelimiter(prefix, *answer) ? " " : "", *answer,
                      format.fewshot_delimiter);
}

class RequestMaker {
 public:
  static absl::StatusOr<RequestMaker> Make(const Task& task,
                                           const Json& columns,
                                           const Json& example_columns) {
    RequestMaker maker(task);
    CAPSTAN_ASSIGN_OR_RETURN(maker.writer_,
                             RowWriter::Make(task.path, task.format, columns));
    CAPSTAN_ASSIGN_OR_RETURN(
        maker.example_writer_,
        RowWriter::Make(task.path, task.fewshot.format, example_columns));
    CAPSTAN_ASSIGN_OR_RETURN(
        maker.description_,
        MakeField(absl::StrCat(task.path, ": description"), FieldKind::kPlain,
                  RowField(task.description.empty() ? Json()
                                                    : Json(task.description)),
                  columns, /*has_choices=*/false));
    return maker;
  }

  // `shown`: the examples, one after the other.
  absl::StatusOr<Request> Ask(const Document& document,
                              const std::string& shown) const {
    Request request;
    request.place = document.place;
    request.row = document.row;
    CAPSTAN_ASSIGN_OR_RETURN(Written written, writer_.Write(document));
    CAPSTAN_ASSIGN_OR_RETURN(const Json description, description_(document));
    const std::string before = absl::StrCat(
        description.is_null() ? "" : PythonText(description), shown);
    request.choices = written.choices;
    if (task_->output == TaskOutput::kRolling) {
      request.questions = {{"", {PythonText(written.target)}}};
      return request;
    }
    const auto turn = [&](const std::string& text) {
      return before + Turn(text, written.prefix, absl::nullopt, task_->format);
    };
    if (SeveralInputs(written)) {
      CAPSTAN_ASSIGN_OR_RETURN(
          const int64_t gold,
          ChoiceOf(written.text, written.choices, request.place));
      request.gold = {gold};
      for (const std::string& choice : written.choices) {
        request.questions.push_back(
            {turn(choice),
             {task_->format.target_delimiter + PythonText(written.target)}});
      }
      return request;
    }
    request.questions = {{turn(PythonText(written.text)), {}}};
    CAPSTAN_RETURN_IF_ERROR(SetTarget(written, &request));
    std::vector<std::string>& continuations =
        request.questions[0].continuations;
    if (task_->output == TaskOutput::kMultipleChoice) {
      for (const std::string& one : written.choices) {
        continuations.push_back(task_->format.target_delimiter + one);
      }
      request.asks_unconditional = task_->HasMetric("acc_mutual_info");
      if (request.asks_unconditional) {
        request.questions.push_back({"", continuations});
      }
    } else if (task_->output == TaskOutput::kLogLikelihood) {
      // As it is: the harness puts no delimiter there.
      continuations.push_back(request.references.front());
    }
    return request;
  }

  // An example with its right answer.
  absl::StatusOr<std::string> Shown(const Document& document) const {
    CAPSTAN_ASSIGN_OR_RETURN(const Written written,
                             example_writer_.Write(document));
    const Json& target = written.target;
    std::string text = PythonText(written.text);
    absl::optional<std::string> answer;
    if (SeveralInputs(written)) {
      CAPSTAN_ASSIGN_OR_RETURN(
          const int64_t gold,
          ChoiceOf(written.text, written.choices, document.place));
      text = written.choices[gold];
      answer = PythonText(target);
    } else {
      const Json first =
          target.is_array() && !target.empty() ? target[0] : target;
      if (!written.choices.empty() &&
          (first.is_number_integer() || first.is_boolean())) {
        CAPSTAN_ASSIGN_OR_RETURN(
            const int64_t gold,
            ChoiceOf(first, written.choices, document.place));
        answer = written.choices[gold];
      } else if (!first.is_null()) {
        answer = PythonText(first);
      }
    }
    return Turn(text, written.prefix, answer, task_->fewshot.format);
  }

 private:
  explicit RequestMaker(const Task& task) : task_(&task) {}

  // Whether the choices are contexts, of which the text names one.
  bool SeveralInputs(const Written& written) const {
    return task_->output == TaskOutput::kMultipleChoice &&
           !written.choices.empty() && written.text.is_number_integer();
  }

  absl::Status SetTarget(const Written& written, Request* request) const {
    std::vector<Json> targets = {written.target};
    if (written.target.is_array()) {
      targets.assign(written.target.begin(), written.target.end());
    }
    for (const Json& one : targets) {
      if (written.choices.empty()) {
        request->references.push_back(PythonText(one));
        continue;
      }
      const absl::StatusOr<int64_t> index =
          ChoiceOf(one, written.choices, request->place);
      // process_results may know better than by a target.
      if (!index.ok() && task_->results != nullptr) return absl::OkStatus();
      CAPSTAN_RETURN_IF_ERROR(index.status());
      request->gold.push_back(*index);
      request->references.push_back(written.choices[*index]);
    }
    if (!request->references.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(request->place, ": doc_to_target is an empty list"));
  }

  const Task* task_;
  RowWriter writer_, example_writer_;
  FieldOfRow description_;
};

// Which examples a prompt shows: as lm_eval/api/samplers.py chooses them.
class ExampleChooser {
 public:
  // `from_asked`: the examples are what is asked, too.
  ExampleChooser(const Task& task, const std::vector<Document>& examples,
                 bool from_asked)
      : task_(task),
        examples_(examples),
        from_asked_(from_asked),
        random_(kFewshotSeed) {}

  absl::StatusOr<std::vector<int64_t>> Choose(const Document& document) {
    const int64_t shots = task_.num_fewshot;
    if (task_.fewshot.first) return Others(document, shots);
    const int64_t all = static_cast<int64_t>(examples_.size());
    std::vector<int64_t> drawn =
        random_.Sample(all, std::min(all, shots + (from_asked_ ? 1 : 0)));
    drawn.erase(
        std::remove_if(drawn.begin(), drawn.end(),
                       [&](int64_t i) { return Same(examples_[i], document); }),
        drawn.end());
    if (static_cast<int64_t>(drawn.size()) < shots) {
      // Some of them were the row itself: again, without it.
      CAPSTAN_RETURN_IF_ERROR(Others(document, shots).status());
      CAPSTAN_ASSIGN_OR_RETURN(const std::vector<int64_t> others,
                               Others(document, /*most=*/-1));
      drawn.clear();
      for (const int64_t i :
           random_.Sample(static_cast<int64_t>(others.size()), shots)) {
        drawn.push_back(others[i]);
      }
    }
    drawn.resize(shots);
    return drawn;
  }

 private:
  static bool Same(const Document& a, const Document& b) {
    return a.row == b.row;
  }

  // The first `most` other rows, an error if there are fewer; -1: all.
  absl::StatusOr<std::vector<int64_t>> Others(const Document& document,
                                              int64_t most) const {
    std::vector<int64_t> others;
    for (size_t i = 0; i < examples_.size(); ++i) {
      if (static_cast<int64_t>(others.size()) == most) break;
      if (!Same(examples_[i], document)) {
        others.push_back(static_cast<int64_t>(i));
      }
    }
    if (static_cast<int64_t>(others.size()) >= most) return others;
    return absl::InvalidArgumentError(absl::StrCat(
        task_.path, ": num_fewshot is ", most, ", but there are only ",
        others.size(),
        " other rows to show: name more with --fewshot_data=FILE"));
  }

  const Task& task_;
  const std::vector<Document>& examples_;
  const bool from_asked_;
  PythonRandom random_;
};

// The rows that examples come from.
absl::StatusOr<std::vector<Document>> ExamplesOf(
    const Task& task, const std::vector<Document>& documents,
    const std::vector<Document>& examples) {
  std::vector<Document> made;
  if (task.num_fewshot == 0) return made;
  if (examples.empty() && !task.fewshot.samples.empty()) {
    for (const Json& row : task.fewshot.samples) {
      made.push_back({row, absl::StrCat(task.path, ": fewshot_config.samples[",
                                        made.size(), "]")});
    }
    return made;
  }
  made = examples.empty() ? documents : examples;
  if (task.fewshot.process_docs == nullptr) return made;
  return Processed(made, task.fewshot.process_docs);
}

}  // namespace

absl::StatusOr<std::vector<Request>> MakeRequests(
    const Task& task, const std::vector<Document>& rows,
    const std::vector<Document>& example_rows, int64_t first) {
  std::vector<Request> requests;
  if (rows.empty()) return requests;
  std::vector<Document> documents = rows;
  if (task.process_docs != nullptr) {
    CAPSTAN_ASSIGN_OR_RETURN(documents, Processed(rows, task.process_docs));
    if (documents.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          task.path, ": process_docs leaves none of the rows of ",
          rows.front().place.substr(0, rows.front().place.rfind(':'))));
    }
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<Document> examples,
                           ExamplesOf(task, rows, example_rows));
  if (first > 0 && first < static_cast<int64_t>(documents.size())) {
    documents.resize(first);
  }
  const Json& columns = documents.front().row;
  CAPSTAN_ASSIGN_OR_RETURN(
      const RequestMaker maker,
      RequestMaker::Make(task, columns,
                         examples.empty() ? columns : examples.front().row));
  const bool own = example_rows.empty() && task.fewshot.samples.empty();
  ExampleChooser chooser(task, examples, own || task.fewshot.from_asked);
  std::vector<absl::optional<std::string>> written(examples.size());
  for (const Document& document : documents) {
    std::string shown;
    if (task.num_fewshot > 0) {
      CAPSTAN_ASSIGN_OR_RETURN(const std::vector<int64_t> chosen,
                               chooser.Choose(document));
      for (const int64_t i : chosen) {
        if (!written[i].has_value()) {
          CAPSTAN_ASSIGN_OR_RETURN(written[i], maker.Shown(examples[i]));
        }
        absl::StrAppend(&shown, *written[i]);
      }
    }
    CAPSTAN_ASSIGN_OR_RETURN(Request request, maker.Ask(document, shown));
    requests.push_back(std::move(request));
  }
  return requests;
}

}  // namespace capstan::evaluate
