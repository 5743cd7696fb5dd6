// SPDX-License-Identifier: Apache-2.0
#include "inference/evaluate/row_values.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status.h"

namespace capstan::evaluate {
namespace {

// The first of the greatest, as numpy's argmax.
int64_t Best(const std::vector<double>& values) {
  return std::max_element(values.begin(), values.end()) - values.begin();
}

double Characters(absl::string_view text) {
  return static_cast<double>(std::count_if(
      text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

// The likeliest after each value is divided by its choice's length.
int64_t BestBy(const std::vector<double>& values,
               const std::vector<double>& lengths) {
  std::vector<double> divided;
  for (size_t i = 0; i < values.size(); ++i) {
    divided.push_back(lengths[i] == 0.0
                          ? -std::numeric_limits<double>::infinity()
                          : values[i] / lengths[i]);
  }
  return Best(divided);
}

Json Probabilities(const std::vector<double>& log_likelihoods) {
  const double most =
      *std::max_element(log_likelihoods.begin(), log_likelihoods.end());
  double sum = 0.0;
  for (const double value : log_likelihoods) sum += std::exp(value - most);
  Json probabilities = Json::array();
  for (const double value : log_likelihoods) {
    probabilities.push_back(std::exp(value - most) / sum);
  }
  return probabilities;
}

// Of a question with choices.
Json ChoiceValue(const std::string& metric, const Request& request,
                 const Answer& answer) {
  const size_t count = request.choices.size();
  std::vector<double> values, unconditional, characters, bytes;
  for (size_t i = 0; i < count; ++i) {
    values.push_back(answer.scores[i].log_likelihood);
    if (request.asks_unconditional) {
      unconditional.push_back(answer.scores[i].log_likelihood -
                              answer.scores[count + i].log_likelihood);
    }
    characters.push_back(Characters(request.choices[i]));
    bytes.push_back(static_cast<double>(request.choices[i].size()));
  }
  const auto right = [&](int64_t best) {
    return absl::c_linear_search(request.gold, best) ? 1.0 : 0.0;
  };
  const Json gold =
      request.gold.size() == 1 ? Json(request.gold[0]) : Json(request.gold);
  if (metric == "acc") return right(Best(values));
  if (metric == "acc_norm") return right(BestBy(values, characters));
  if (metric == "acc_bytes") return right(BestBy(values, bytes));
  if (metric == "acc_mutual_info") return right(Best(unconditional));
  if (metric == "exact_match") {
    return std::any_of(
               request.gold.begin(), request.gold.end(),
               [&](int64_t index) { return answer.scores[index].greedy; })
               ? 1
               : 0;
  }
  if (metric == "brier_score") return {gold, Probabilities(values)};
  if (metric == "likelihood") return {gold, Json(values)};
  return {gold, Best(values)};  // f1, mcc
}

// Of a text; several texts count with their mean, several references with the
// best.
absl::StatusOr<double> TextValue(const TaskMetric& metric,
                                 const Request& request,
                                 const std::vector<std::string>& texts) {
  double sum = 0.0;
  for (const std::string& text : texts) {
    double best = 0.0;
    for (const std::string& reference : request.references) {
      if (metric.name == "rouge_l") {
        best = std::max(best, RougeL(text, reference));
        continue;
      }
      CAPSTAN_ASSIGN_OR_RETURN(const bool same,
                               ExactMatch(text, reference, metric.exact));
      if (same) best = 1.0;
    }
    sum += best;
  }
  return sum / static_cast<double>(texts.size());
}

Json LikelihoodValue(const std::string& metric, const Request& request,
                     const Answer& answer) {
  if (metric == "perplexity") return answer.scores[0].log_likelihood;
  if (metric == "acc") return answer.scores[0].greedy ? 1.0 : 0.0;
  // Of a whole text, with what it is divided by.
  const std::string& text = request.questions[0].continuations[0];
  return {answer.scores[0].log_likelihood,
          metric == "word_perplexity" ? static_cast<double>(CountWords(text))
                                      : static_cast<double>(text.size())};
}

absl::StatusOr<Json> OfFilter(const Task& task, const Request& request,
                              const Answer& answer,
                              const std::vector<std::string>& texts) {
  if (task.results != nullptr) {
    RowAnswer row;
    for (const Score& score : answer.scores) {
      row.log_likelihoods.push_back(score.log_likelihood);
      row.greedy.push_back(score.greedy);
    }
    if (!texts.empty()) row.text = texts[0];
    return task.results(request.row, row);
  }
  Json values = Json::object();
  for (const TaskMetric& metric : task.metrics) {
    if (metric.name == "bypass") {
      values[metric.name] = 0;
    } else if (task.output == TaskOutput::kMultipleChoice) {
      values[metric.name] = ChoiceValue(metric.name, request, answer);
    } else if (task.output == TaskOutput::kGenerateUntil) {
      CAPSTAN_ASSIGN_OR_RETURN(values[metric.name],
                               TextValue(metric, request, texts));
    } else {
      values[metric.name] = LikelihoodValue(metric.name, request, answer);
    }
  }
  return values;
}

std::string NameOf(const std::string& metric, const TaskFilter& filter) {
  return filter.name.empty() ? metric : absl::StrCat(metric, ",", filter.name);
}

}  // namespace

const std::vector<std::string>& MetricsOf(TaskOutput output) {
  static const auto* const of_output =
      new std::map<TaskOutput, std::vector<std::string>>(
          {{TaskOutput::kMultipleChoice,
            {"acc", "acc_norm", "acc_bytes", "acc_mutual_info", "exact_match",
             "f1", "mcc", "brier_score", "likelihood", "bypass"}},
           {TaskOutput::kLogLikelihood, {"perplexity", "acc", "bypass"}},
           {TaskOutput::kRolling,
            {"word_perplexity", "byte_perplexity", "bits_per_byte"}},
           {TaskOutput::kGenerateUntil, {"exact_match", "rouge_l", "bypass"}}});
  return of_output->at(output);
}

std::string AggregationOf(const std::string& metric) {
  if (metric == "perplexity" || metric == "brier_score" || metric == "f1" ||
      metric == "bits_per_byte" || metric == "bypass") {
    return metric;
  }
  if (metric == "mcc") return "matthews_corrcoef";
  if (metric == "word_perplexity" || metric == "byte_perplexity") {
    return "weighted_perplexity";
  }
  return "mean";
}

ValueShape ShapeOf(const std::string& metric) {
  if (metric == "likelihood") return ValueShape::kChoices;
  if (metric == "bypass") return ValueShape::kNumber;
  return ShapeFor(AggregationOf(metric));
}

absl::StatusOr<Json> ValuesOf(const Task& task, const Request& request,
                              const Answer& answer) {
  Json all = Json::object();
  for (const TaskFilter& filter : task.filters) {
    std::vector<std::string> texts;
    if (task.output == TaskOutput::kGenerateUntil) {
      absl::StatusOr<std::vector<std::string>> filtered =
          filter.Apply(answer.texts, request.row);
      if (!filtered.ok()) return Annotate(filtered.status(), request.place);
      texts = *std::move(filtered);
    }
    absl::StatusOr<Json> values = OfFilter(task, request, answer, texts);
    if (!values.ok()) return Annotate(values.status(), request.place);
    for (auto& [name, value] : values->items()) {
      all[NameOf(name, filter)] = std::move(value);
    }
    // Filters are for texts.
    if (task.output != TaskOutput::kGenerateUntil) break;
  }
  return all;
}

std::vector<std::string> ValueNames(const Task& task) {
  std::vector<std::string> names;
  for (const TaskFilter& filter : task.filters) {
    for (const TaskMetric& metric : task.metrics) {
      names.push_back(NameOf(metric.name, filter));
    }
    if (task.output != TaskOutput::kGenerateUntil) break;
  }
  return names;
}

}  // namespace capstan::evaluate
