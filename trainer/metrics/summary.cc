// SPDX-License-Identifier: Apache-2.0
#include "trainer/metrics/summary.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "trainer/metrics/number_text.h"

namespace capstan {
namespace {

using Json = nlohmann::ordered_json;

Json OrNull(const absl::optional<double>& value) {
  return value.has_value() ? Json(*value) : Json(nullptr);
}

}  // namespace

std::string SummaryJson(const RunSummary& summary) {
  Json json;
  json["status"] = summary.status;
  json["steps"] = summary.steps;
  json["tokens"] = summary.tokens;
  json["parameters"] = summary.parameters;
  json["world_size"] = summary.world_size;
  json["strategy"] = summary.strategy;
  json["precision"] = summary.precision;
  json["ready_seconds"] = summary.ready_seconds;
  json["step_seconds_median"] = summary.step_seconds_median;
  json["tokens_per_second"] = summary.tokens_per_second;
  json["peak_memory_bytes"] = summary.peak_memory_bytes;
  json["final_loss"] = OrNull(summary.final_loss);
  json["eval_loss"] = OrNull(summary.eval_loss);
  return json.dump(2, ' ', /*ensure_ascii=*/false,
                   Json::error_handler_t::replace) +
         "\n";
}

std::string SummaryTable(const RunSummary& summary,
                         const std::string& output_dir) {
  std::vector<std::pair<std::string, std::string>> rows;
  rows.emplace_back("status", summary.status);
  rows.emplace_back("steps", WithCommas(summary.steps));
  rows.emplace_back("tokens", WithCommas(summary.tokens));
  if (summary.final_loss.has_value()) {
    rows.emplace_back("final loss",
                      absl::StrFormat("%.4f", *summary.final_loss));
  }
  if (summary.eval_loss.has_value()) {
    rows.emplace_back("eval loss", absl::StrFormat("%.4f", *summary.eval_loss));
  }
  rows.emplace_back(
      "speed",
      absl::StrCat(WithCommas(static_cast<int64_t>(summary.tokens_per_second)),
                   " tokens/s, ", ShortDuration(summary.step_seconds_median),
                   " a step"));
  rows.emplace_back("ready after", ShortDuration(summary.ready_seconds));
  if (!summary.peak_memory_bytes.empty()) {
    rows.emplace_back(
        "peak memory",
        absl::StrCat(
            ShortBytes(*std::max_element(summary.peak_memory_bytes.begin(),
                                         summary.peak_memory_bytes.end())),
            summary.world_size > 1 ? " (largest rank)" : ""));
  }
  rows.emplace_back("output", output_dir);
  return absl::StrCat("\n", TableText(rows));
}

}  // namespace capstan
