// SPDX-License-Identifier: Apache-2.0
#include "desk/compare/comparison.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"
#include "desk/compare/blame.h"
#include "desk/run_folder/json_fields.h"
#include "trainer/metrics/reporter.h"

namespace capstan {
namespace {

double Distance(double value, double reference) {
  const bool finite = std::isfinite(value);
  if (finite != std::isfinite(reference)) {
    return std::numeric_limits<double>::infinity();
  }
  if (!finite || value == reference) return 0.0;
  // Relative to 0 there is no scale.
  if (reference == 0.0) return std::numeric_limits<double>::infinity();
  return std::abs(value - reference) / std::abs(reference);
}

// The reference of `precision`, or null.
const ComparedRun* ChooseReference(const Comparison& comparison,
                                   const std::string& precision) {
  const ComparedRun* reference = nullptr;
  for (const ComparedRun& run : comparison.runs) {
    if (run.precision != precision ||
        run.status == ComparedRun::Status::kSkipped) {
      continue;
    }
    const bool shares_curve = reference != nullptr &&
                              reference->bounds.own_curve.has_value() &&
                              !run.bounds.own_curve.has_value();
    if (reference == nullptr || shares_curve ||
        (run.strategy == reference->strategy &&
         run.processes < reference->processes)) {
      reference = &run;
    }
  }
  return reference;
}

void CheckBound(const char* what, const CurveDelta& delta, double bound,
                const ComparedRun& run, const ComparedRun& reference,
                Comparison* comparison) {
  if (delta.max <= bound) return;
  comparison->problems.push_back(
      std::isfinite(delta.max)
          ? absl::StrFormat(
                "%s: %s differs from that of %s by %.2e at step %d; the bound "
                "is %.2g (relative)",
                run.Label(), what, reference.Label(), delta.max, delta.max_step,
                bound)
          : absl::StrFormat(
                "%s: %s is finite at step %d where that of %s is not, or the "
                "other way round",
                run.Label(), what, delta.max_step, reference.Label()));
}

// Checks a cost of `run`, which is `value`, against `bound` times that of
// `reference`. `what`: "the median step's time".
void CheckCost(const char* what, absl::optional<double> bound,
               absl::optional<double> value, absl::optional<double> of,
               const ComparedRun& run, const ComparedRun& reference,
               Comparison* comparison) {
  if (!bound.has_value()) return;
  if (!value.has_value() || !of.has_value() || *of <= 0.0) {
    comparison->problems.push_back(absl::StrFormat(
        "%s: %s has a bound, %.4g times that of %s, but wasn't measured",
        run.Label(), what, *bound, reference.Label()));
  } else if (*value > *bound * *of) {
    comparison->problems.push_back(absl::StrFormat(
        "%s: %s is %.4g times that of %s; the bound is %.4g", run.Label(), what,
        *value / *of, reference.Label(), *bound));
  }
}

// Two curves that are both NaN don't count as agreement.
void CheckFinite(const ComparedRun& reference, Comparison* comparison) {
  const std::vector<double>& loss = reference.measured.loss;
  for (size_t i = 0; i < loss.size(); ++i) {
    if (std::isfinite(loss[i])) continue;
    comparison->problems.push_back(absl::StrFormat(
        "%s, a reference: the loss is not finite at step %d, so from there on "
        "nothing is compared",
        reference.Label(), i + 1));
    return;
  }
}

void CompareRuns(Comparison* comparison) {
  for (ComparedPrecision& precision : comparison->precisions) {
    const ComparedRun* reference = ChooseReference(*comparison, precision.name);
    if (reference == nullptr) continue;
    precision.reference = reference->id;
    if (reference->status != ComparedRun::Status::kCompleted) continue;
    CheckFinite(*reference, comparison);
    for (ComparedRun& run : comparison->runs) {
      if (run.precision != precision.name ||
          run.status != ComparedRun::Status::kCompleted) {
        continue;
      }
      run.reference = reference->id;
      run.loss_delta = DeltaOf(run.measured.loss, reference->measured.loss);
      run.grad_norm_delta =
          DeltaOf(run.measured.grad_norm, reference->measured.grad_norm);
      const CompareBounds& bounds = run.bounds;
      CheckBound("loss", run.loss_delta, bounds.loss, run, *reference,
                 comparison);
      CheckBound("gradient norm", run.grad_norm_delta, bounds.grad_norm, run,
                 *reference, comparison);
      if (&run == reference) continue;
      CheckCost("the median step's time", bounds.step_time,
                run.measured.step_seconds, reference->measured.step_seconds,
                run, *reference, comparison);
      CheckCost("the tensors' peak memory", bounds.peak_memory,
                run.measured.Memory("total").measured,
                reference->measured.Memory("total").measured, run, *reference,
                comparison);
    }
  }
}

void ComparePrecisions(Comparison* comparison) {
  std::vector<ComparedPrecision>& precisions = comparison->precisions;
  if (precisions.empty()) return;
  const ComparedRun* first = comparison->FindRun(precisions[0].reference);
  for (size_t i = 1; i < precisions.size(); ++i) {
    const ComparedRun* run = comparison->FindRun(precisions[i].reference);
    if (first == nullptr || run == nullptr ||
        first->status != ComparedRun::Status::kCompleted ||
        run->status != ComparedRun::Status::kCompleted) {
      continue;
    }
    precisions[i].from_first = PrecisionDistance{
        DeltaOf(run->measured.loss, first->measured.loss),
        DeltaOf(run->measured.grad_norm, first->measured.grad_norm)};
  }
}

using Json = nlohmann::ordered_json;

// Initial steps excluded from medians (cold buffers), as in the trainer's
// summary.
constexpr size_t kWarmUpSteps = 2;

double NumberOrNan(const Json& object, const char* key) {
  return NumberOf(object, key)
      .value_or(std::numeric_limits<double>::quiet_NaN());
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
absl::optional<double> MedianAfterWarmUp(
    std::vector<absl::optional<double>> values) {
  if (values.empty()) return absl::nullopt;
  values.erase(values.begin(),
               values.begin() + std::min(kWarmUpSteps, values.size() - 1));
  std::vector<double> numbers;
  for (const absl::optional<double>& value : values) {
    if (!value.has_value()) return absl::nullopt;
    numbers.push_back(*value);
  }
  return Median(std::move(numbers));
}

absl::Status ReadMetrics(const std::string& path, int64_t steps,
                         RunMeasurements* measured) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  std::vector<absl::optional<double>> seconds, rates, bytes, communication,
      exposed;
  for (const absl::string_view line :
       absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const Json object = ParseJson<Json>(line);
    const absl::optional<double> step = NumberOf(object, "step");
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
    seconds.push_back(NumberOf(object, "step_seconds"));
    rates.push_back(Rate(object, &measured->unit));
    bytes.push_back(NumberOf(object, "bytes_sent"));
    communication.push_back(NumberOf(object, "communication_seconds"));
    exposed.push_back(NumberOf(object, "exposed_seconds"));
  }
  if (static_cast<int64_t>(measured->loss.size()) != steps) {
    return absl::DataLossError(absl::StrCat(
        path, " has ", measured->loss.size(), " of ", steps, " steps"));
  }
  measured->step_seconds = MedianAfterWarmUp(std::move(seconds)).value_or(0.0);
  measured->tokens_per_second =
      MedianAfterWarmUp(std::move(rates)).value_or(0.0);
  measured->bytes_sent = MedianAfterWarmUp(std::move(bytes));
  measured->communication_seconds = MedianAfterWarmUp(std::move(communication));
  measured->exposed_seconds = MedianAfterWarmUp(std::move(exposed));
  return absl::OkStatus();
}

absl::Status ReadSummary(const std::string& path, RunMeasurements* measured) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  const Json summary = ParseJson<Json>(text);
  if (!summary.is_object()) {
    return absl::DataLossError(absl::StrCat(path, " is no JSON object"));
  }
  measured->parameters =
      static_cast<int64_t>(NumberOf(summary, "parameters").value_or(0.0));
  measured->peak_memory_bytes = Greatest(summary, "peak_memory_bytes");
  measured->memory_growth_bytes = Greatest(summary, "memory_growth_bytes");
  const auto memory = summary.find("memory");
  if (memory != summary.end() && memory->is_object()) {
    for (const auto& [category, use] : memory->items()) {
      measured->memory.push_back(
          {category, NumberOf(use, "predicted"), NumberOf(use, "measured")});
    }
  }
  return absl::OkStatus();
}

}  // namespace

CurveDelta DeltaOf(const std::vector<double>& curve,
                   const std::vector<double>& reference) {
  CurveDelta delta;
  const size_t steps = std::min(curve.size(), reference.size());
  for (size_t i = 0; i < steps; ++i) {
    const double value = Distance(curve[i], reference[i]);
    if (i == 0 || value > delta.max) {
      delta.max = value;
      delta.max_step = static_cast<int64_t>(i) + 1;
    }
    delta.values.push_back(value);
  }
  return delta;
}

std::string CompareBounds::Text() const {
  std::string text = absl::StrFormat("loss %.2g", loss);
  if (std::isfinite(grad_norm)) {
    absl::StrAppendFormat(&text, ", gradient norm %.2g", grad_norm);
  }
  if (own_curve.has_value()) absl::StrAppend(&text, " (", *own_curve, ")");
  if (bit_identical) absl::StrAppend(&text, ", bit-identical");
  if (step_time.has_value()) {
    absl::StrAppendFormat(&text, ", step time x %.4g", *step_time);
  }
  if (peak_memory.has_value()) {
    absl::StrAppendFormat(&text, ", peak memory x %.4g", *peak_memory);
  }
  return text;
}

MemoryUse RunMeasurements::Memory(const std::string& category) const {
  for (const MemoryUse& use : memory) {
    if (use.category == category) return use;
  }
  return {category, absl::nullopt, absl::nullopt};
}

std::string ComparedRun::Label() const {
  return absl::StrCat(strategy, " ", precision, " on ", processes,
                      processes == 1 ? " rank" : " ranks");
}

std::string Comparison::Unit() const {
  for (const ComparedRun& run : runs) {
    if (run.status == ComparedRun::Status::kCompleted) return run.measured.unit;
  }
  return RunMeasurements().unit;
}

const ComparedRun* Comparison::FindRun(const std::string& id) const {
  const auto it =
      std::find_if(runs.begin(), runs.end(),
                   [&id](const ComparedRun& run) { return run.id == id; });
  return it == runs.end() ? nullptr : &*it;
}

void CompareBits(const std::string& folder, Comparison* comparison) {
  for (const ComparedRun& run : comparison->runs) {
    if (!run.bounds.bit_identical || run.reference.empty() ||
        run.reference == run.id) {
      continue;
    }
    const absl::StatusOr<absl::optional<FirstDifference>> where =
        FindFirstDifference(absl::StrCat(folder, "/", run.id),
                            absl::StrCat(folder, "/", run.reference));
    if (where.ok() && !where->has_value()) continue;
    comparison->problems.push_back(absl::StrCat(
        run.Label(), ": the bound is bit_identical, but ",
        where.ok() ? absl::StrCat("it parts from ",
                                  comparison->FindRun(run.reference)->Label(),
                                  " in step ", (*where)->step, ": the ",
                                  (*where)->kind, " of '", (*where)->parameter,
                                  "' differs; --blame shows by how much")
                   : std::string(where.status().message())));
  }
}

void Compare(Comparison* comparison) {
  for (const ComparedRun& run : comparison->runs) {
    if (run.status != ComparedRun::Status::kFailed) continue;
    comparison->problems.push_back(
        absl::StrCat(run.Label(), " failed: ", run.reason));
  }
  CompareRuns(comparison);
  ComparePrecisions(comparison);
}

absl::StatusOr<RunMeasurements> ReadMeasurements(const std::string& folder,
                                                 int64_t steps) {
  RunMeasurements measured;
  CAPSTAN_RETURN_IF_ERROR(
      ReadMetrics(folder + "/metrics.jsonl", steps, &measured));
  CAPSTAN_RETURN_IF_ERROR(ReadSummary(folder + "/summary.json", &measured));
  return measured;
}

int64_t MetricsFollower::Poll() {
  lines_.Poll(
      [this](absl::string_view line, int64_t) {
        const Json object = ParseJson<Json>(line);
        const absl::optional<double> step = NumberOf(object, "step");
        if (!step.has_value() || !object.contains("loss")) return;
        step_ = static_cast<int64_t>(*step);
        loss_ = NumberOf(object, "loss");
      },
      [this] {
        step_ = 0;
        loss_.reset();
      });
  return step_;
}

}  // namespace capstan
