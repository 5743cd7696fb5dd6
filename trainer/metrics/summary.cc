// SPDX-License-Identifier: Apache-2.0
#include "trainer/metrics/summary.h"

#include <algorithm>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "nlohmann/json.hpp"
#include "trainer/metrics/number_text.h"

namespace capstan {
namespace {

std::string Parameters(int64_t parameters) {
  if (parameters < 1000) return absl::StrCat(parameters);
  return absl::StrCat(ShortCount(static_cast<double>(parameters)), " (",
                      WithCommas(parameters), ")");
}

std::string Steps(const RunFacts& facts) {
  std::string text = WithCommas(facts.max_steps);
  if (facts.first_step > 0) {
    absl::StrAppend(&text, ", resumed at step ", WithCommas(facts.first_step));
  }
  return text;
}

using Json = nlohmann::ordered_json;

template <typename T>
Json OrNull(const absl::optional<T>& value) {
  return value.has_value() ? Json(*value) : Json(nullptr);
}

// The maximum over ranks.
absl::optional<int64_t> LargestPeak(const RunSummary& summary) {
  const std::vector<int64_t>& peaks = summary.peak_memory_bytes;
  if (peaks.empty()) return absl::nullopt;
  return *std::max_element(peaks.begin(), peaks.end());
}

Json MemoryJson(const std::vector<CategoryBytes>& memory) {
  Json json = Json::object();
  for (const CategoryBytes& bytes : memory) {
    json[bytes.category] = {{"predicted", OrNull(bytes.predicted)},
                            {"measured", OrNull(bytes.measured)}};
  }
  return json;
}

std::string BytesOrUnknown(const absl::optional<int64_t>& bytes) {
  return bytes.has_value() ? ShortBytes(*bytes) : "?";
}

// "planned 1.20 GiB, measured 1.19 GiB", one line per category.
void AddMemory(const std::vector<CategoryBytes>& memory,
               std::vector<std::pair<std::string, std::string>>* rows) {
  for (const CategoryBytes& bytes : memory) {
    const bool total = bytes.category == "total";
    if (bytes.predicted == 0 && bytes.measured.value_or(0) == 0 && !total) {
      continue;
    }
    rows->emplace_back(
        total ? "all tensors"
              : absl::StrCat("  ",
                             absl::StrReplaceAll(bytes.category, {{"_", " "}})),
        absl::StrFormat("planned %9s  measured %9s",
                        BytesOrUnknown(bytes.predicted),
                        BytesOrUnknown(bytes.measured)));
  }
}

// "13,104, 9,871 of them trained on; padding takes 14.2 % of the positions".
std::string Amount(const RunSummary& summary) {
  std::string text = WithCommas(summary.tokens);
  if (summary.unit != kTokenUnit || summary.trained_tokens < 0) return text;
  absl::StrAppend(&text, ", ", WithCommas(summary.trained_tokens),
                  " of them trained on");
  if (summary.padding > 0.0) {
    absl::StrAppendFormat(&text, "; padding takes %.1f %% of the positions",
                          100.0 * summary.padding);
  }
  return text;
}

std::string Communication(const RunSummary& summary) {
  std::string text =
      absl::StrCat(ShortBytes(summary.bytes_sent_per_step), " sent a step");
  if (summary.communication_seconds.has_value() &&
      summary.exposed_communication_seconds.has_value()) {
    absl::StrAppend(&text, ", ", ShortDuration(*summary.communication_seconds),
                    ", of which ",
                    ShortDuration(*summary.exposed_communication_seconds),
                    " not hidden");
  }
  return text;
}

}  // namespace

std::string BannerText(const RunFacts& facts, bool bold) {
  const std::string batch = absl::StrCat(
      facts.global_batch_size, " = micro ", facts.micro_batch_size, " x ",
      facts.world_size, facts.world_size == 1 ? " rank" : " ranks",
      " x accumulation ", facts.accumulation);
  std::vector<std::pair<std::string, std::string>> rows = {
      {"ranks", absl::StrCat(facts.world_size)},
      {"devices", facts.device},
      {"strategy", facts.strategy},
      {"precision", facts.precision},
      {"parameters", Parameters(facts.parameters)},
      {"global batch", batch},
      {"steps", Steps(facts)},
      {"output", facts.output_dir},
  };
  if (!facts.placed_by.empty()) {
    rows.insert(rows.begin() + 1, {"placed by", facts.placed_by});
  }
  return absl::StrCat(bold ? "\x1b[1m" : "", "Capstan: ", facts.name,
                      bold ? "\x1b[0m\n" : "\n", TableText(rows), "\n");
}

std::string SummaryJson(const RunSummary& summary) {
  Json json;
  json["status"] = summary.status;
  json["steps"] = summary.steps;
  json[summary.unit] = summary.tokens;
  if (summary.unit == kTokenUnit && summary.trained_tokens >= 0) {
    json["trained_tokens"] = summary.trained_tokens;
    json["padding"] = summary.padding;
  }
  json["parameters"] = summary.parameters;
  json["world_size"] = summary.world_size;
  json["strategy"] = summary.strategy;
  json["precision"] = summary.precision;
  json["ready_seconds"] = summary.ready_seconds;
  json["step_seconds_median"] = summary.step_seconds_median;
  json[summary.unit + "_per_second"] = summary.tokens_per_second;
  json["bytes_sent_per_step"] = summary.bytes_sent_per_step;
  json["communication_seconds"] = OrNull(summary.communication_seconds);
  json["exposed_communication_seconds"] =
      OrNull(summary.exposed_communication_seconds);
  json["peak_memory_bytes"] = summary.peak_memory_bytes;
  json["memory_growth_bytes"] = summary.memory_growth_bytes;
  json["process_memory"] = {
      {"predicted", OrNull(summary.planned_process_bytes)},
      {"measured", OrNull(LargestPeak(summary))}};
  json["memory"] = MemoryJson(summary.memory);
  json["final_loss"] = OrNull(summary.final_loss);
  json["eval_loss"] = OrNull(summary.eval_loss);
  json["best_eval_loss"] = OrNull(summary.best_eval_loss);
  json["best_step"] = OrNull(summary.best_step);
  return json.dump(2, ' ', /*ensure_ascii=*/false,
                   Json::error_handler_t::replace) +
         "\n";
}

std::string SummaryTable(const RunSummary& summary,
                         const std::string& output_dir) {
  std::vector<std::pair<std::string, std::string>> rows;
  rows.emplace_back("status", summary.status);
  rows.emplace_back("steps", WithCommas(summary.steps));
  rows.emplace_back(summary.unit, Amount(summary));
  if (summary.final_loss.has_value()) {
    rows.emplace_back("final loss",
                      absl::StrFormat("%.4f", *summary.final_loss));
  }
  if (summary.eval_loss.has_value()) {
    std::string text = absl::StrFormat("%.4f", *summary.eval_loss);
    if (summary.best_eval_loss.has_value() && summary.best_step.has_value() &&
        *summary.best_eval_loss < *summary.eval_loss) {
      absl::StrAppendFormat(&text, ", lowest %.4f after step %d",
                            *summary.best_eval_loss, *summary.best_step);
    }
    rows.emplace_back("eval loss", text);
  }
  rows.emplace_back(
      "speed",
      absl::StrCat(WithCommas(static_cast<int64_t>(summary.tokens_per_second)),
                   " ", summary.unit, "/s, ",
                   ShortDuration(summary.step_seconds_median), " a step"));
  if (summary.world_size > 1) {
    rows.emplace_back("communication", Communication(summary));
  }
  rows.emplace_back("ready after", ShortDuration(summary.ready_seconds));
  if (const absl::optional<int64_t> peak = LargestPeak(summary)) {
    std::string text = ShortBytes(*peak);
    if (summary.planned_process_bytes.has_value()) {
      absl::StrAppend(&text, " of the process, planned ",
                      ShortBytes(*summary.planned_process_bytes));
    }
    rows.emplace_back(
        "peak memory",
        absl::StrCat(text, summary.world_size > 1 ? " (largest rank)" : ""));
  }
  AddMemory(summary.memory, &rows);
  rows.emplace_back("output", output_dir);
  return absl::StrCat("\n", TableText(rows));
}

absl::optional<int64_t> CompletedSteps(const std::string& output_dir) {
  std::ifstream file(output_dir + "/summary.json");
  const Json json =
      Json::parse(file, /*callback=*/nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::nullopt;
  const auto status = json.find("status");
  const auto steps = json.find("steps");
  if (status == json.end() || *status != "completed" || steps == json.end() ||
      !steps->is_number_integer()) {
    return absl::nullopt;
  }
  return steps->get<int64_t>();
}

}  // namespace capstan
