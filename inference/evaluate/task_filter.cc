// SPDX-License-Identifier: Apache-2.0
#include "inference/evaluate/task_filter.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "inference/evaluate/row_field.h"
#include "inference/evaluate/task_keys.h"

namespace capstan::evaluate {
namespace {

using Texts = TaskFilter::Texts;

std::shared_ptr<const Pattern> Compile(const char* key,
                                       const std::string& pattern,
                                       TaskKeys* keys) {
  absl::StatusOr<std::unique_ptr<Pattern>> compiled = Pattern::Compile(pattern);
  if (compiled.ok()) return *std::move(compiled);
  keys->Fail(key, compiled.status().message());
  return nullptr;
}

// The options of a step that finds something.
struct Finder {
  // This of the pattern's matches, from the end if negative, else `fallback`.
  std::shared_ptr<const Pattern> pattern;
  int64_t group_select = 0;
  std::string fallback;

  // The match that is selected; unset without one.
  absl::StatusOr<absl::optional<std::string>> Selected(
      const Pattern& by, const std::string& text) const {
    CAPSTAN_ASSIGN_OR_RETURN(const std::vector<std::string> found,
                             by.FindAll(text));
    const int64_t count = static_cast<int64_t>(found.size());
    const int64_t at = group_select < 0 ? count + group_select : group_select;
    if (at < 0 || at >= count) return absl::optional<std::string>();
    return absl::make_optional<std::string>(
        absl::StripAsciiWhitespace(found[at]));
  }
};

Finder ReadFinder(const YAML::Node& node, TaskKeys* keys) {
  Finder finder;
  finder.pattern = Compile(
      "filter_list",
      keys->As<std::string>("filter_list.regex_pattern", node["regex_pattern"],
                            "#### (\\-?[0-9\\.\\,]+)"),
      keys);
  finder.group_select =
      keys->As<int64_t>("filter_list.group_select", node["group_select"], 0);
  finder.fallback = keys->As<std::string>("filter_list.fallback",
                                          node["fallback"], "[invalid]");
  return finder;
}

absl::StatusOr<std::string> ByRegex(const Finder& finder,
                                    const std::string& text) {
  CAPSTAN_ASSIGN_OR_RETURN(const absl::optional<std::string> match,
                           finder.Selected(*finder.pattern, text));
  // Of several groups, one must have matched something.
  if (match.has_value() && (!match->empty() || finder.pattern->groups() < 2)) {
    return *match;
  }
  return finder.fallback;
}

// Answers to questions with choices: what the pattern finds, else the first of
// the choices' texts, as "(A)", else a letter behind a colon. `rewrite` is for
// texts and choices.
absl::StatusOr<Texts> ByChoices(const Finder& finder,
                                const ExactMatchOptions& rewrite,
                                const Texts& texts, const Json& row) {
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
        Rewritten(absl::StripAsciiWhitespace(whole), rewrite));
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
                             finder.Selected(*finder.pattern, text));
    std::string answer = found.value_or("");
    if (answer.empty()) {
      CAPSTAN_ASSIGN_OR_RETURN(const std::string rewritten,
                               Rewritten(text, rewrite));
      CAPSTAN_ASSIGN_OR_RETURN(found, finder.Selected(*by_text, rewritten));
      answer = found.value_or("");
      if (letters.contains(answer)) answer = letters[answer];
    }
    if (answer.empty()) {
      CAPSTAN_ASSIGN_OR_RETURN(found, finder.Selected(*by_letter, text));
      answer = found.value_or("");
      if (!answer.empty()) answer = absl::StrCat("(", answer, ")");
    }
    answers.push_back(answer.empty() ? finder.fallback : answer);
  }
  return answers;
}

// The most frequent; of several the first.
std::string Majority(const Texts& texts) {
  const auto votes = [&](const std::string& text) {
    return std::count(texts.begin(), texts.end(), text);
  };
  return *std::max_element(texts.begin(), texts.end(),
                           [&](const std::string& a, const std::string& b) {
                             return votes(a) < votes(b);
                           });
}

absl::StatusOr<Texts> FirstOf(size_t count, Texts texts) {
  if (texts.size() < count) {
    return absl::InvalidArgumentError(
        absl::StrCat("the filter take_first_k takes ", count,
                     " texts, but `repeats` is ", texts.size()));
  }
  texts.resize(count);
  return texts;
}

// Texts by texts; `otherwise`, which may be null, for what isn't in `map`.
std::string Mapped(const Json& map, const Json& otherwise,
                   const std::string& text) {
  const auto found = map.find(text);
  return PythonText(found == map.end() ? otherwise : *found);
}

TaskFilter::Step ReadStep(const YAML::Node& node, TaskKeys* keys) {
  const std::string function =
      keys->As<std::string>("filter_list.function", node["function"], "");
  if (function == "regex") {
    return EachText([finder = ReadFinder(node, keys)](const std::string& text) {
      return ByRegex(finder, text);
    });
  }
  if (function == "multi_choice_regex") {
    const Finder finder = ReadFinder(node, keys);
    ExactMatchOptions rewrite = ReadExactMatch("filter_list", node, keys);
    rewrite.all_punctuation = rewrite.ignore_punctuation;
    return [finder, rewrite](const Texts& texts, const Json& row) {
      return ByChoices(finder, rewrite, texts, row);
    };
  }
  if (function == "remove_whitespace") {
    return EachText([](const std::string& text) {
      return std::string(absl::StripAsciiWhitespace(text));
    });
  }
  if (function == "lowercase") return EachText(Lower);
  if (function == "uppercase") return EachText(Upper);
  if (function == "map") {
    Json map = keys->Value("filter_list", node["mapping_dict"]);
    if (!map.is_object()) map = Json::object();
    const Json otherwise = keys->Value("filter_list", node["default_value"]);
    return EachText([map, otherwise](const std::string& text) {
      return Mapped(map, otherwise, text);
    });
  }
  if (function == "take_first_k") {
    const int64_t count = keys->As<int64_t>("filter_list.k", node["k"], 0);
    if (count < 1) keys->Fail("filter_list.k", "must be greater than 0");
    return [count](Texts texts, const Json&) {
      return FirstOf(static_cast<size_t>(count), std::move(texts));
    };
  }
  if (function == "majority_vote") {
    return
        [](const Texts& texts, const Json&) { return Texts{Majority(texts)}; };
  }
  if (function != "take_first") {
    keys->Fail("filter_list",
               absl::StrCat("names the filter \"", function,
                            "\"; known are regex, multi_choice_regex, "
                            "take_first, take_first_k, majority_vote, map, "
                            "remove_whitespace, lowercase and uppercase"));
  }
  return [](const Texts& texts, const Json&) { return Texts{texts[0]}; };
}

}  // namespace

absl::StatusOr<Texts> TaskFilter::Apply(Texts texts, const Json& row) const {
  for (const Step& step : steps) {
    CAPSTAN_ASSIGN_OR_RETURN(texts, step(std::move(texts), row));
  }
  return texts;
}

TaskFilter::Step EachText(
    std::function<absl::StatusOr<std::string>(const std::string& text)>
        change) {
  return [change = std::move(change)](Texts texts,
                                      const Json&) -> absl::StatusOr<Texts> {
    for (std::string& text : texts) {
      CAPSTAN_ASSIGN_OR_RETURN(text, change(text));
    }
    return texts;
  };
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
