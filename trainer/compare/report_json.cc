// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <nlohmann/json.hpp>

#include "trainer/compare/report.h"

namespace capstan {
namespace {

using Json = nlohmann::ordered_json;

// JSON can't represent non-finite numbers.
Json Finite(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

Json OrNull(const absl::optional<double>& value) {
  return value.has_value() ? Finite(*value) : Json(nullptr);
}

Json TextOrNull(const std::string& text) {
  return text.empty() ? Json(nullptr) : Json(text);
}

Json Curve(const std::vector<double>& values) {
  Json json = Json::array();
  for (const double value : values) json.push_back(Finite(value));
  return json;
}

Json DeltaJson(const CurveDelta& delta) {
  Json json;
  json["max"] = Finite(delta.max);
  json["max_step"] = delta.max_step;
  json["values"] = Curve(delta.values);
  return json;
}

const char* StatusText(ComparedRun::Status status) {
  switch (status) {
    case ComparedRun::Status::kPending:
      return "pending";
    case ComparedRun::Status::kSkipped:
      return "skipped";
    case ComparedRun::Status::kFailed:
      return "failed";
    case ComparedRun::Status::kCompleted:
      return "completed";
  }
  return "unknown";
}

Json PrecisionJson(const ComparedPrecision& precision) {
  Json json;
  json["name"] = precision.name;
  json["reference"] = TextOrNull(precision.reference);
  json["bounds"] = {{"loss", Finite(precision.bounds.loss)},
                    {"grad_norm", Finite(precision.bounds.grad_norm)}};
  json["from_first"] = nullptr;
  if (precision.from_first.has_value()) {
    json["from_first"] = {
        {"loss", DeltaJson(precision.from_first->loss)},
        {"grad_norm", DeltaJson(precision.from_first->grad_norm)}};
  }
  return json;
}

void AddMeasurements(const RunMeasurements& measured, Json* json) {
  (*json)["parameters"] = measured.parameters;
  (*json)["skipped_steps"] = measured.skipped_steps;
  (*json)["step_seconds"] = measured.step_seconds;
  (*json)[measured.unit + "_per_second"] = measured.tokens_per_second;
  (*json)["bytes_sent_per_step"] = OrNull(measured.bytes_sent);
  (*json)["communication_seconds"] = OrNull(measured.communication_seconds);
  (*json)["exposed_communication_seconds"] = OrNull(measured.exposed_seconds);
  (*json)["peak_memory_bytes"] = OrNull(measured.peak_memory_bytes);
  (*json)["memory_growth_bytes"] = OrNull(measured.memory_growth_bytes);
  Json memory = Json::object();
  for (const MemoryUse& use : measured.memory) {
    memory[use.category] = {{"predicted", OrNull(use.predicted)},
                            {"measured", OrNull(use.measured)}};
  }
  (*json)["memory"] = memory;
  (*json)["loss"] = Curve(measured.loss);
  (*json)["grad_norm"] = Curve(measured.grad_norm);
}

Json RunJson(const ComparedRun& run) {
  const bool completed = run.status == ComparedRun::Status::kCompleted;
  Json json;
  json["id"] = run.id;
  json["strategy"] = run.strategy;
  json["precision"] = run.precision;
  json["processes"] = run.processes;
  json["status"] = StatusText(run.status);
  json["reason"] = TextOrNull(run.reason);
  if (run.status == ComparedRun::Status::kSkipped) return json;
  json["accumulation"] = run.accumulation;
  json["folder"] = "runs/" + run.id;
  if (!completed) return json;
  AddMeasurements(run.measured, &json);
  json["reference"] = TextOrNull(run.reference);
  json["loss_delta"] = nullptr;
  json["grad_norm_delta"] = nullptr;
  if (!run.reference.empty()) {
    json["loss_delta"] = DeltaJson(run.loss_delta);
    json["grad_norm_delta"] = DeltaJson(run.grad_norm_delta);
  }
  return json;
}

}  // namespace

std::string ReportJson(const Comparison& comparison) {
  Json json;
  json["name"] = comparison.name;
  json["time"] = comparison.time;
  json["passed"] = comparison.passed();
  json["problems"] = comparison.problems;
  json["device"] = comparison.device;
  json["max_steps"] = comparison.max_steps;
  json["global_batch_size"] = comparison.global_batch_size;
  json["unit"] = comparison.Unit();
  json["precisions"] = Json::array();
  for (const ComparedPrecision& precision : comparison.precisions) {
    json["precisions"].push_back(PrecisionJson(precision));
  }
  json["runs"] = Json::array();
  for (const ComparedRun& run : comparison.runs) {
    json["runs"].push_back(RunJson(run));
  }
  json["config"] = comparison.config_text;
  json["shared_config"] = comparison.shared_config_text;
  return json.dump(1, ' ', /*ensure_ascii=*/false,
                   Json::error_handler_t::replace) +
         "\n";
}

}  // namespace capstan
