// SPDX-License-Identifier: Apache-2.0
//
// Forms of functions that templates can't say.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/json.h"
#include "base/status.h"
#include "inference/evaluate/function_forms.h"
#include "inference/evaluate/python_literal.h"
#include "inference/evaluate/text_scores.h"

namespace capstan::evaluate {
namespace {

using Json = nlohmann::ordered_json;

absl::Status Unexpected(const char* what) {
  return absl::InvalidArgumentError(
      absl::StrCat("the row isn't as expected: ", what));
}

// Takes WikiHow's marks out of a text.
std::string WithoutMarks(absl::string_view text) {
  static const Pattern& brackets = Pattern::Constant("\\[.*?\\]");
  std::string clean = absl::StrReplaceAll(absl::StripAsciiWhitespace(text),
                                          {{" [title]", ". "}});
  clean = brackets.Remove(clean).value();
  return absl::StrReplaceAll(clean, {{"  ", " "}});
}

// Python's str.capitalize.
std::string Capitalized(absl::string_view text) {
  size_t first = text.empty() ? 0 : 1;
  while (first < text.size() && (text[first] & 0xC0) == 0x80) ++first;
  return absl::StrCat(Upper(text.substr(0, first)), Lower(text.substr(first)));
}

// int() of a number or a text.
absl::StatusOr<int64_t> WholeNumber(const Json& row, const char* column) {
  const auto found = row.find(column);
  if (found != row.end()) {
    if (const auto number = JsonInteger(*found); number.has_value()) {
      return *number;
    }
    int64_t number = 0;
    if (found->is_string() &&
        absl::SimpleAtoi(found->get<std::string>(), &number)) {
      return number;
    }
  }
  return Unexpected(column);
}

absl::StatusOr<std::vector<std::string>> TextsIn(const Json& row,
                                                 const char* column) {
  std::vector<std::string> texts;
  const auto found = row.find(column);
  if (found == row.end() || !found->is_array()) return Unexpected(column);
  for (const Json& one : *found) {
    if (!one.is_string()) return Unexpected(column);
    texts.push_back(one.get<std::string>());
  }
  return texts;
}

std::string Detokenized(std::string text) {
  static const struct {
    const Pattern& pattern;
    const char* with;
  } kPairs[] = {{Pattern::Constant("\\(\\s*([^\\)]*?)\\s*\\)"), "(${1})"},
                {Pattern::Constant("\\[\\s*([^\\]]*?)\\s*\\]"), "[${1}]"},
                {Pattern::Constant("{\\s*([^}]*?)\\s*}"), "{${1}}"},
                {Pattern::Constant("\"\\s*([^\"]*?)\\s*\""), "\"${1}\""},
                {Pattern::Constant("'\\s*([^']*?)\\s*'"), "'${1}'"}};
  static const Pattern& slashes = Pattern::Constant("/' [0-9]/");
  const auto replace = [&text](absl::string_view what, absl::string_view with) {
    text = absl::StrReplaceAll(text, {{what, with}});
  };
  replace("s '", "s'");
  text = slashes.Replace(text, "/'[0-9]/").value();
  replace(" @-@ ", "-");
  replace(" @,@ ", ",");
  replace(" @.@ ", ".");
  for (const char* mark : {":", ";", ".", "!", "?", ","}) {
    replace(absl::StrCat(" ", mark, " "), absl::StrCat(mark, " "));
  }
  for (const auto& [pattern, with] : kPairs) {
    text = pattern.Replace(text, with).value();
  }
  replace("= = = =", "====");
  replace("= = =", "===");
  replace("= =", "==");
  replace(" \u00b0 ", "\u00b0");
  replace(" \n", "\n");
  replace("\n ", "\n");
  replace(" N ", " 1 ");
  replace(" 's", "'s");
  return text;
}

// The problems of a RACE row, which are one text in Python's syntax; each with
// its answer's text as "right".
absl::StatusOr<Json> Problems(const Json& row) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text, TextColumn(row, "problems"));
  absl::optional<Json> problems = PythonLiteral(text);
  if (!problems.has_value() || !problems->is_array() || problems->empty()) {
    return Unexpected("problems");
  }
  for (Json& problem : *problems) {
    if (!problem.is_object()) return Unexpected("problems");
    const std::string answer = problem.value("answer", "");
    if (answer.size() != 1 || answer[0] < 'A' || answer[0] > 'D' ||
        !problem.contains("question") || !problem["question"].is_string() ||
        !problem.contains("options") || problem["options"].size() < 4) {
      return Unexpected("problems");
    }
    problem["right"] = answer[0] - 'A';
  }
  return *std::move(problems);
}

// The answers, without those that begin with another one.
absl::StatusOr<std::vector<std::string>> Shortest(const Json& row) {
  CAPSTAN_ASSIGN_OR_RETURN(std::vector<std::string> answers,
                           TextsIn(row, "answers"));
  if (answers.empty()) return Unexpected("answers");
  std::sort(answers.begin(), answers.end());
  std::vector<std::string> kept;
  for (std::string& answer : answers) {
    if (kept.empty() || !absl::StartsWith(answer, kept.back())) {
      kept.push_back(std::move(answer));
    }
  }
  return kept;
}

absl::StatusOr<Json> HellaswagRow(const Json& row) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string a, TextColumn(row, "ctx_a"));
  CAPSTAN_ASSIGN_OR_RETURN(const std::string b, TextColumn(row, "ctx_b"));
  CAPSTAN_ASSIGN_OR_RETURN(const std::string label,
                           TextColumn(row, "activity_label"));
  CAPSTAN_ASSIGN_OR_RETURN(std::vector<std::string> endings,
                           TextsIn(row, "endings"));
  CAPSTAN_ASSIGN_OR_RETURN(const int64_t gold, WholeNumber(row, "label"));
  for (std::string& ending : endings) ending = WithoutMarks(ending);
  return Json{{"query",
               WithoutMarks(absl::StrCat(label, ": ", a, " ", Capitalized(b)))},
              {"choices", endings},
              {"gold", gold}};
}

absl::StatusOr<Json> OkapiArcRow(const Json& row) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string question,
                           TextColumn(row, "instruction"));
  CAPSTAN_ASSIGN_OR_RETURN(const std::string answer, TextColumn(row, "answer"));
  std::vector<std::string> choices;
  for (const char* column :
       {"option_a", "option_b", "option_c", "option_d", "option_e"}) {
    const auto found = row.find(column);
    if (found == row.end() || found->is_null() || *found == "") continue;
    CAPSTAN_ASSIGN_OR_RETURN(const std::string option, TextColumn(row, column));
    choices.push_back(WithoutMarks(option));
  }
  if (answer.size() != 1 || answer[0] < 'A' || answer[0] > 'E') {
    return Unexpected("answer");
  }
  return Json{{"query",
               absl::StrCat("Question: ", WithoutMarks(question), "\nAnswer:")},
              {"choices", choices},
              {"gold", answer[0] - 'A'}};
}

absl::StatusOr<Json> WikitextPage(const Json& row) {
  CAPSTAN_ASSIGN_OR_RETURN(std::string page, TextColumn(row, "page"));
  return Json(Detokenized(std::move(page)));
}

absl::StatusOr<Json> C4Text(const Json& row) {
  CAPSTAN_ASSIGN_OR_RETURN(std::string text, TextColumn(row, "text"));
  return Json(Detokenized(std::move(text)));
}

absl::StatusOr<Json> WebQuestionsChoices(const Json& row) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<std::string> kept, Shortest(row));
  return Json(kept);
}

absl::StatusOr<Json> WebQuestionsTarget(const Json& row) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<std::string> kept, Shortest(row));
  Json all = Json::array();
  for (size_t i = 0; i < kept.size(); ++i) all.push_back(i);
  return all;
}

absl::StatusOr<Json> RaceText(const Json& row) {
  CAPSTAN_ASSIGN_OR_RETURN(const Json problems, Problems(row));
  CAPSTAN_ASSIGN_OR_RETURN(const std::string article,
                           TextColumn(row, "article"));
  std::string text = absl::StrCat("Article: ", article, "\n\n");
  for (size_t i = 0; i + 1 < problems.size(); ++i) {
    const std::string question = problems[i]["question"].get<std::string>();
    const std::string answer =
        problems[i]["options"][problems[i]["right"].get<size_t>()];
    // A gap at the end is filled.
    if (absl::EndsWith(question, "  _  .")) {
      absl::StrAppend(&text, question.substr(0, question.size() - 5), answer,
                      "\n");
    } else {
      absl::StrAppend(&text, "Question: ", question, "\nAnswer: ", answer,
                      "\n");
    }
  }
  return Json(text + problems.back()["question"].get<std::string>());
}

absl::StatusOr<Json> RaceTarget(const Json& row) {
  CAPSTAN_ASSIGN_OR_RETURN(const Json problems, Problems(row));
  return problems.back()["right"];
}

absl::StatusOr<Json> RaceChoices(const Json& row) {
  CAPSTAN_ASSIGN_OR_RETURN(const Json problems, Problems(row));
  const Json& options = problems.back()["options"];
  return Json{options[0], options[1], options[2], options[3]};
}

absl::StatusOr<Json> MathQaChoices(const Json& row) {
  static const Pattern& option =
      Pattern::Constant("[abcd] \\) .*?, |e \\) .*?(?=\\n?\\z)");
  CAPSTAN_ASSIGN_OR_RETURN(const std::string options,
                           TextColumn(row, "options"));
  Json choices = Json::array();
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                           option.FindAll(options));
  for (const std::string& found : all) {
    std::string choice = found.substr(4);
    while (!choice.empty() && absl::StrContains(" ,", choice.back())) {
      choice.pop_back();
    }
    choices.push_back(choice);
  }
  return choices;
}

}  // namespace

absl::StatusOr<std::string> TextColumn(const Json& row, const char* column) {
  const auto found = row.find(column);
  if (found == row.end() || !found->is_string()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the row has no text \"", column, "\""));
  }
  return found->get<std::string>();
}

// The answer to the last question, and other people's that differ from it and
// from each other.
absl::StatusOr<Json> CoqaTarget(const Json& row) {
  if (!row.contains("questions") || !row.contains("answers") ||
      !row["questions"].is_object() || !row["answers"].is_object()) {
    return Unexpected("questions, answers");
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<std::string> questions,
                           TextsIn(row["questions"], "input_text"));
  std::vector<Json> people = {row["answers"]};
  const auto more = row.find("additional_answers");
  if (more != row.end() && more->is_object()) {
    for (const auto& [name, answers] : more->items()) people.push_back(answers);
  }
  Json target = Json::array();
  std::vector<std::string> lower;
  for (const Json& person : people) {
    CAPSTAN_ASSIGN_OR_RETURN(const std::vector<std::string> answers,
                             TextsIn(person, "input_text"));
    if (questions.empty() || answers.size() < questions.size()) {
      return Unexpected("answers");
    }
    const std::string answer = answers[questions.size() - 1];
    if (std::find(lower.begin(), lower.end(), Lower(answer)) != lower.end()) {
      continue;
    }
    lower.push_back(Lower(answer));
    target.push_back(answer);
  }
  return target;
}

absl::Span<const RowForm> CodeForms() {
  constexpr RowForm::Kind kCode = RowForm::kCode;
  static const auto* const forms = new std::vector<RowForm>{
      {"coqa doc_to_target", 0x1c7ff81b9639134f, kCode, "", CoqaTarget},
      {"c4 doc_to_target", 0x31c190fd5e728b3f, kCode, "", C4Text},
      {"hellaswag process_docs", 0x7613d578e5c35176, kCode, "", HellaswagRow},
      {"mathqa doc_to_choice", 0xd647785e1156212e, kCode, "", MathQaChoices},
      {"okapi arc process_docs", 0x0667198ac0ad8298, kCode, "", OkapiArcRow},
      {"race doc_to_text", 0x4c3036b4c0a1bc35, kCode, "", RaceText},
      {"race doc_to_target", 0x9a6bcde5cbdf07cf, kCode, "", RaceTarget},
      {"race doc_to_choice", 0xc23da342af402e0b, kCode, "", RaceChoices},
      {"webqs doc_to_choice", 0x532f24855cea458c, kCode, "",
       WebQuestionsChoices},
      {"webqs doc_to_target", 0xd5d042a5f79926f7, kCode, "",
       WebQuestionsTarget},
      {"wikitext doc_to_target", 0x8e5b06fa8dd4cb0f, kCode, "", WikitextPage}};
  return *forms;
}

}  // namespace capstan::evaluate
