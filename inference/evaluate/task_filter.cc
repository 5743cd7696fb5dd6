// SPDX-License-Identifier: Apache-2.0
#include "inference/evaluate/task_filter.h"

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "inference/evaluate/task_keys.h"

namespace capstan::evaluate {
namespace {

std::shared_ptr<const Pattern> Compile(const char* key,
                                       const std::string& pattern,
                                       TaskKeys* keys) {
  absl::StatusOr<std::unique_ptr<Pattern>> compiled = Pattern::Compile(pattern);
  if (compiled.ok()) return *std::move(compiled);
  keys->Fail(key, compiled.status().message());
  return nullptr;
}

// The match that `step` selects; unset without one.
absl::StatusOr<absl::optional<std::string>> Selected(
    const TaskFilter::Step& step, const Pattern& pattern,
    const std::string& text) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<std::string> found,
                           pattern.FindAll(text));
  const int64_t count = static_cast<int64_t>(found.size());
  const int64_t at =
      step.group_select < 0 ? count + step.group_select : step.group_select;
  if (at < 0 || at >= count) return absl::optional<std::string>();
  return absl::make_optional<std::string>(
      absl::StripAsciiWhitespace(found[at]));
}

absl::StatusOr<std::string> ByRegex(const TaskFilter::Step& step,
                                    const std::string& text) {
  CAPSTAN_ASSIGN_OR_RETURN(const absl::optional<std::string> match,
                           Selected(step, *step.pattern, text));
  // Of several groups, one must have matched something.
  if (match.has_value() && (!match->empty() || step.pattern->groups() < 2)) {
    return *match;
  }
  return step.fallback;
}

// Answers to questions with choices: what the pattern finds, else the first of
// the choices' texts, as "(A)", else a letter behind a colon.
absl::StatusOr<std::vector<std::string>> ByChoices(
    const TaskFilter::Step& step, const std::vector<std::string>& texts,
    const Json& row) {
  const auto choices = row.find("choices");
  if (choices == row.end() || !choices->is_array()) {
    return absl::InvalidArgumentError(
        "the filter multi_choice_regex needs a column `choices`, a list");
  }
  if (choices->size() > 26) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the filter multi_choice_regex calls choices A to Z, and the column "
        "`choices` has ",
        choices->size(), " of them"));
  }
  Json letters = Json::object();
  std::vector<std::string> spelt;
  char letter = 'A';
  for (const Json& choice : *choices) {
    const std::string whole =
        choice.is_string() ? choice.get<std::string>() : choice.dump();
    CAPSTAN_ASSIGN_OR_RETURN(
        const std::string text,
        Rewritten(absl::StripAsciiWhitespace(whole), step.rewrite));
    spelt.push_back(Pattern::Escaped(text));
    letters[text] = absl::StrCat("(", std::string(1, letter++), ")");
  }
  // The longest first, of which others may be the beginning.
  std::stable_sort(spelt.begin(), spelt.end(),
                   [](const std::string& a, const std::string& b) {
                     return a.size() > b.size();
                   });
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<Pattern> by_text,
                           Pattern::Compile(absl::StrJoin(spelt, "|")));
  std::vector<std::string> marks;
  for (char c = 'A'; c < letter; ++c) marks.push_back(std::string(1, c));
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<Pattern> by_letter,
                           Pattern::Compile(absl::StrCat(
                               ":[\\s]*(", absl::StrJoin(marks, "|"), ")")));
  std::vector<std::string> answers;
  for (const std::string& text : texts) {
    CAPSTAN_ASSIGN_OR_RETURN(absl::optional<std::string> found,
                             Selected(step, *step.pattern, text));
    std::string answer = found.value_or("");
    if (answer.empty()) {
      CAPSTAN_ASSIGN_OR_RETURN(const std::string rewritten,
                               Rewritten(text, step.rewrite));
      CAPSTAN_ASSIGN_OR_RETURN(found, Selected(step, *by_text, rewritten));
      answer = found.value_or("");
      if (letters.contains(answer)) answer = letters[answer];
    }
    if (answer.empty()) {
      CAPSTAN_ASSIGN_OR_RETURN(found, Selected(step, *by_letter, text));
      answer = found.value_or("");
      if (!answer.empty()) answer = absl::StrCat("(", answer, ")");
    }
    answers.push_back(answer.empty() ? step.fallback : answer);
  }
  return answers;
}

// The most frequent; of several the first.
std::string Majority(const std::vector<std::string>& texts) {
  const auto votes = [&](const std::string& text) {
    return std::count(texts.begin(), texts.end(), text);
  };
  return *std::max_element(texts.begin(), texts.end(),
                           [&](const std::string& a, const std::string& b) {
                             return votes(a) < votes(b);
                           });
}

std::string Mapped(const Json& map, const std::string& text) {
  const auto found = map["mapping"].find(text);
  const Json& value = found == map["mapping"].end() ? map["default"] : *found;
  if (value.is_null()) return "None";
  return value.is_string() ? value.get<std::string>() : value.dump();
}

absl::Status ApplyStep(const TaskFilter::Step& step, const Json& row,
                       std::vector<std::string>* texts) {
  using Step = TaskFilter::Step;
  const auto each =
      [texts](const std::function<std::string(const std::string&)>& fn) {
        std::transform(texts->begin(), texts->end(), texts->begin(), fn);
      };
  switch (step.kind) {
    case Step::kTakeFirst:
      texts->resize(1);
      break;
    case Step::kTakeFirstK: {
      const size_t count = step.value.get<size_t>();
      if (texts->size() < count) {
        return absl::InvalidArgumentError(
            absl::StrCat("the filter take_first_k takes ", count,
                         " texts, but `repeats` is ", texts->size()));
      }
      texts->resize(count);
      break;
    }
    case Step::kMajorityVote:
      *texts = {Majority(*texts)};
      break;
    case Step::kLowercase:
      each([](const std::string& text) { return Lower(text); });
      break;
    case Step::kUppercase:
      each([](const std::string& text) { return Upper(text); });
      break;
    case Step::kRemoveWhitespace:
      each([](const std::string& text) {
        return std::string(absl::StripAsciiWhitespace(text));
      });
      break;
    case Step::kMap:
      each([&](const std::string& text) { return Mapped(step.value, text); });
      break;
    case Step::kRegex:
      for (std::string& text : *texts) {
        CAPSTAN_ASSIGN_OR_RETURN(text, ByRegex(step, text));
      }
      break;
    case Step::kMultiChoiceRegex: {
      CAPSTAN_ASSIGN_OR_RETURN(*texts, ByChoices(step, *texts, row));
      break;
    }
  }
  return absl::OkStatus();
}

// The options of a step that finds something.
void ReadRegex(const YAML::Node& node, TaskKeys* keys, TaskFilter::Step* step) {
  step->pattern = Compile(
      "filter_list",
      keys->As<std::string>("filter_list.regex_pattern", node["regex_pattern"],
                            "#### (\\-?[0-9\\.\\,]+)"),
      keys);
  step->group_select =
      keys->As<int64_t>("filter_list.group_select", node["group_select"], 0);
  step->fallback = keys->As<std::string>("filter_list.fallback",
                                         node["fallback"], "[invalid]");
}

TaskFilter::Step ReadStep(const YAML::Node& node, TaskKeys* keys) {
  using Step = TaskFilter::Step;
  Step step;
  const std::string function =
      keys->As<std::string>("filter_list.function", node["function"], "");
  if (function == "regex") {
    step.kind = Step::kRegex;
    ReadRegex(node, keys, &step);
  } else if (function == "multi_choice_regex") {
    step.kind = Step::kMultiChoiceRegex;
    ReadRegex(node, keys, &step);
    step.rewrite = ReadExactMatch("filter_list", node, keys);
    step.rewrite.all_punctuation = step.rewrite.ignore_punctuation;
  } else if (function == "remove_whitespace") {
    step.kind = Step::kRemoveWhitespace;
  } else if (function == "lowercase") {
    step.kind = Step::kLowercase;
  } else if (function == "uppercase") {
    step.kind = Step::kUppercase;
  } else if (function == "map") {
    step.kind = Step::kMap;
    step.value = {
        {"mapping", keys->Value("filter_list", node["mapping_dict"])},
        {"default", keys->Value("filter_list", node["default_value"])}};
    if (!step.value["mapping"].is_object()) {
      step.value["mapping"] = Json::object();
    }
  } else if (function == "take_first_k") {
    step.kind = Step::kTakeFirstK;
    const int64_t count = keys->As<int64_t>("filter_list.k", node["k"], 0);
    if (count < 1) keys->Fail("filter_list.k", "must be greater than 0");
    step.value = count;
  } else if (function == "majority_vote") {
    step.kind = Step::kMajorityVote;
  } else if (function != "take_first") {
    keys->Fail("filter_list",
               absl::StrCat("names the filter \"", function,
                            "\"; known are regex, multi_choice_regex, "
                            "take_first, take_first_k, majority_vote, map, "
                            "remove_whitespace, lowercase and uppercase"));
  }
  return step;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> TaskFilter::Apply(
    std::vector<std::string> texts, const Json& row) const {
  for (const Step& step : steps) {
    CAPSTAN_RETURN_IF_ERROR(ApplyStep(step, row, &texts));
  }
  return texts;
}

std::vector<TaskFilter> ReadFilters(TaskKeys* keys) {
  std::vector<TaskFilter> filters;
  if (!keys->Has("filter_list")) return filters;
  for (const YAML::Node& node : keys->At("filter_list").node) {
    TaskFilter filter;
    filter.name = keys->As<std::string>("filter_list.name", node["name"], "");
    for (const YAML::Node& step : node["filter"]) {
      filter.steps.push_back(ReadStep(step, keys));
    }
    filters.push_back(std::move(filter));
  }
  return filters;
}

ExactMatchOptions ReadExactMatch(const char* key, const YAML::Node& node,
                                 TaskKeys* keys) {
  ExactMatchOptions exact;
  const auto flag = [&](const char* name) {
    return keys->As<bool>(absl::StrCat(key, ".", name), node[name], false);
  };
  exact.ignore_case = flag("ignore_case");
  exact.ignore_punctuation = flag("ignore_punctuation");
  exact.ignore_numbers = flag("ignore_numbers");
  if (!node["regexes_to_ignore"]) return exact;
  for (const std::string& pattern :
       keys->Texts(absl::StrCat(key, ".regexes_to_ignore"),
                   node["regexes_to_ignore"])) {
    exact.ignore.push_back(Compile(key, pattern, keys));
  }
  return exact;
}

}  // namespace capstan::evaluate
