// SPDX-License-Identifier: Apache-2.0
#include "trainer/compare/run_files.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/files.h"
#include "base/status.h"

namespace capstan {
namespace {

using Json = nlohmann::ordered_json;

// Initial steps excluded from medians (cold buffers), as in the trainer's
// summary.
constexpr size_t kWarmUpSteps = 2;

// is_discarded() if invalid.
Json Parse(absl::string_view text) {
  return Json::parse(text.begin(), text.end(), /*cb=*/nullptr,
                     /*allow_exceptions=*/false);
}

absl::optional<double> Number(const Json& object, const char* key) {
  if (!object.is_object()) return absl::nullopt;
  const auto it = object.find(key);
  if (it == object.end() || !it->is_number()) return absl::nullopt;
  return it->get<double>();
}

double NumberOrNan(const Json& object, const char* key) {
  return Number(object, key).value_or(std::numeric_limits<double>::quiet_NaN());
}

// A step's throughput, whose key has the unit: "tokens_per_second". Sets *unit.
absl::optional<double> Rate(const Json& step, std::string* unit) {
  for (const auto& [key, value] : step.items()) {
    absl::string_view name = key;
    if (!absl::ConsumeSuffix(&name, "_per_second")) continue;
    *unit = std::string(name);
    if (value.is_number()) return value.get<double>();
    break;
  }
  return absl::nullopt;
}

// The maximum of a per-rank array; unset if absent.
absl::optional<double> Greatest(const Json& object, const char* key) {
  absl::optional<double> greatest;
  const auto it = object.find(key);
  if (it == object.end() || !it->is_array()) return greatest;
  for (const Json& value : *it) {
    if (!value.is_number()) continue;
    greatest = std::max(greatest.value_or(0.0), value.get<double>());
  }
  return greatest;
}

// The median after warm-up; unset unless every step has a value.
absl::optional<double> Median(std::vector<absl::optional<double>> values) {
  if (values.empty()) return absl::nullopt;
  values.erase(values.begin(),
               values.begin() + std::min(kWarmUpSteps, values.size() - 1));
  std::vector<double> numbers;
  for (const absl::optional<double>& value : values) {
    if (!value.has_value()) return absl::nullopt;
    numbers.push_back(*value);
  }
  std::sort(numbers.begin(), numbers.end());
  const size_t middle = numbers.size() / 2;
  return numbers.size() % 2 == 1
             ? numbers[middle]
             : 0.5 * (numbers[middle - 1] + numbers[middle]);
}

absl::Status ReadMetrics(const std::string& path, int64_t steps,
                         RunMeasurements* measured) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  std::vector<absl::optional<double>> seconds, rates, bytes, communication,
      exposed;
  for (const absl::string_view line :
       absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const Json object = Parse(line);
    const absl::optional<double> step = Number(object, "step");
    if (!step.has_value()) {
      return absl::DataLossError(absl::StrCat(
          path,
          " has a line that is no object with a step: ", line.substr(0, 80)));
    }
    if (!object.contains("loss")) continue;  // an evaluation
    if (*step != static_cast<double>(measured->loss.size() + 1)) {
      return absl::DataLossError(absl::StrCat(
          path, " has step ", *step, " after ", measured->loss.size()));
    }
    measured->loss.push_back(NumberOrNan(object, "loss"));
    measured->grad_norm.push_back(NumberOrNan(object, "grad_norm"));
    if (object.value("skipped", false)) ++measured->skipped_steps;
    seconds.push_back(Number(object, "step_seconds"));
    rates.push_back(Rate(object, &measured->unit));
    bytes.push_back(Number(object, "bytes_sent"));
    communication.push_back(Number(object, "communication_seconds"));
    exposed.push_back(Number(object, "exposed_seconds"));
  }
  if (static_cast<int64_t>(measured->loss.size()) != steps) {
    return absl::DataLossError(absl::StrCat(
        path, " has ", measured->loss.size(), " of ", steps, " steps"));
  }
  measured->step_seconds = Median(std::move(seconds)).value_or(0.0);
  measured->tokens_per_second = Median(std::move(rates)).value_or(0.0);
  measured->bytes_sent = Median(std::move(bytes));
  measured->communication_seconds = Median(std::move(communication));
  measured->exposed_seconds = Median(std::move(exposed));
  return absl::OkStatus();
}

absl::Status ReadSummary(const std::string& path, RunMeasurements* measured) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  const Json summary = Parse(text);
  if (!summary.is_object()) {
    return absl::DataLossError(absl::StrCat(path, " is no JSON object"));
  }
  measured->parameters =
      static_cast<int64_t>(Number(summary, "parameters").value_or(0.0));
  measured->peak_memory_bytes = Greatest(summary, "peak_memory_bytes");
  measured->memory_growth_bytes = Greatest(summary, "memory_growth_bytes");
  const auto memory = summary.find("memory");
  if (memory != summary.end() && memory->is_object()) {
    for (const auto& [category, use] : memory->items()) {
      measured->memory.push_back(
          {category, Number(use, "predicted"), Number(use, "measured")});
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RunMeasurements> ReadMeasurements(const std::string& folder,
                                                 int64_t steps) {
  RunMeasurements measured;
  CAPSTAN_RETURN_IF_ERROR(
      ReadMetrics(folder + "/metrics.jsonl", steps, &measured));
  CAPSTAN_RETURN_IF_ERROR(ReadSummary(folder + "/summary.json", &measured));
  return measured;
}

const NewestStep& MetricsFollower::Poll() {
  std::ifstream file(path_, std::ios::binary);
  file.seekg(offset_);
  std::string line;
  while (std::getline(file, line) && !file.eof()) {  // eof: incomplete line
    offset_ += static_cast<int64_t>(line.size()) + 1;
    const Json object = Parse(line);
    if (!Number(object, "step").has_value() || !object.contains("loss")) {
      continue;
    }
    newest_.step = static_cast<int64_t>(*Number(object, "step"));
    newest_.loss = NumberOrNan(object, "loss");
    newest_.lr = NumberOrNan(object, "lr");
    newest_.tokens_per_second = Rate(object, &newest_.unit).value_or(NAN);
  }
  return newest_;
}

}  // namespace capstan
