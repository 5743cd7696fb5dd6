// SPDX-License-Identifier: Apache-2.0
#include "desk/compare/report.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"
#include "desk/page/page.h"
#include "trainer/metrics/console.h"

namespace capstan {

extern const EmbeddedFile kComparePage[];  // page/

namespace {

using Json = nlohmann::ordered_json;

// Non-finite numbers, which JSON can't represent, are written as null.
Json OrNull(const absl::optional<double>& value) {
  return value.has_value() ? Json(*value) : Json(nullptr);
}

Json TextOrNull(const std::string& text) {
  return text.empty() ? Json(nullptr) : Json(text);
}

Json DeltaJson(const CurveDelta& delta) {
  return {{"max", delta.max},
          {"max_step", delta.max_step},
          {"values", delta.values}};
}

const char* StatusText(ComparedRun::Status status) {
  constexpr const char* kTexts[] = {"pending", "skipped", "failed",
                                    "completed"};
  return kTexts[static_cast<int>(status)];
}

Json BoundsJson(const CompareBounds& bounds) {
  return {{"loss", bounds.loss},
          {"grad_norm", bounds.grad_norm},  // null: none
          {"own_curve", TextOrNull(bounds.own_curve.value_or(""))},
          {"bit_identical", bounds.bit_identical},
          {"step_time", OrNull(bounds.step_time)},
          {"peak_memory", OrNull(bounds.peak_memory)}};
}

Json PrecisionJson(const ComparedPrecision& precision) {
  Json json;
  json["name"] = precision.name;
  json["reference"] = TextOrNull(precision.reference);
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
  (*json)["loss"] = measured.loss;
  (*json)["grad_norm"] = measured.grad_norm;
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
  json["bounds"] = BoundsJson(run.bounds);
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

using Row = std::vector<std::string>;

constexpr char kUnknown[] = "?";

// Escapes what would end a cell.
std::string Cell(const std::string& text) {
  return absl::StrReplaceAll(text, {{"|", "\\|"}, {"\n", " "}});
}

std::string BytesText(const absl::optional<double>& bytes) {
  return bytes.has_value() ? ShortBytes(static_cast<int64_t>(*bytes))
                           : kUnknown;
}

std::string SecondsText(const absl::optional<double>& seconds) {
  return seconds.has_value() ? ShortDuration(*seconds) : kUnknown;
}

std::string MaxText(const CurveDelta& delta) {
  if (delta.max == 0.0) return "0";
  if (!std::isfinite(delta.max)) {
    return absl::StrCat("not finite, step ", delta.max_step);
  }
  return absl::StrFormat("%.1e, step %d", delta.max, delta.max_step);
}

std::string WithVerdict(const CurveDelta& delta, double bound) {
  return absl::StrCat(MaxText(delta), delta.max > bound ? " **too far**" : "");
}

std::string Verdict(const Comparison& comparison) {
  if (comparison.passed()) {
    return "**PASSED**: every run follows the reference of its precision "
           "within the bounds.\n\n";
  }
  std::string text = "**FAILED**:\n\n";
  for (const std::string& problem : comparison.problems) {
    absl::StrAppend(&text, "- ", problem, "\n");
  }
  return absl::StrCat(text, "\n");
}

std::string CurveTable(const Comparison& comparison,
                       const ComparedPrecision& precision) {
  std::vector<Row> rows;
  for (const ComparedRun& run : comparison.runs) {
    if (run.precision != precision.name ||
        run.status != ComparedRun::Status::kCompleted) {
      continue;
    }
    const bool is_reference = run.id == run.reference;
    const auto delta = [&](const CurveDelta& curve, double bound) {
      if (is_reference) return std::string("reference");
      if (run.reference.empty()) return std::string(kUnknown);
      return WithVerdict(curve, bound);
    };
    rows.push_back({run.strategy, absl::StrCat(run.processes),
                    absl::StrCat(run.accumulation),
                    absl::StrFormat("%.6f", run.measured.loss.back()),
                    delta(run.loss_delta, run.bounds.loss),
                    delta(run.grad_norm_delta, run.bounds.grad_norm),
                    is_reference ? "" : run.bounds.Text()});
  }
  if (rows.empty()) return "";
  return absl::StrCat(
      "### ", precision.name, "\n\n",
      MarkdownTable({"strategy", "ranks", "accumulation", "final loss",
                     "loss: max delta", "gradient norm: max delta", "bounds"},
                    rows));
}

std::string PrecisionTable(const Comparison& comparison) {
  std::vector<Row> rows;
  for (const ComparedPrecision& precision : comparison.precisions) {
    if (!precision.from_first.has_value()) continue;
    rows.push_back({precision.name, MaxText(precision.from_first->loss),
                    MaxText(precision.from_first->grad_norm)});
  }
  if (rows.empty()) return "";
  return absl::StrCat(
      "## Between precisions\n\nFor information, without a bound: each "
      "precision's reference against that of ",
      comparison.precisions[0].name, ".\n\n",
      MarkdownTable(
          {"precision", "loss: max delta", "gradient norm: max delta"}, rows));
}

std::string CostTable(const Comparison& comparison) {
  std::vector<Row> rows;
  for (const ComparedRun& run : comparison.runs) {
    if (run.status != ComparedRun::Status::kCompleted) continue;
    const RunMeasurements& measured = run.measured;
    const MemoryUse total = measured.Memory("total");
    absl::optional<double> hidden;
    if (measured.communication_seconds.has_value() &&
        measured.exposed_seconds.has_value()) {
      hidden = std::max(
          0.0, *measured.communication_seconds - *measured.exposed_seconds);
    }
    rows.push_back({run.strategy, run.precision, absl::StrCat(run.processes),
                    WithCommas(std::llround(measured.tokens_per_second)),
                    ShortDuration(measured.step_seconds),
                    BytesText(total.predicted), BytesText(total.measured),
                    BytesText(measured.peak_memory_bytes),
                    BytesText(measured.bytes_sent), SecondsText(hidden),
                    SecondsText(measured.exposed_seconds)});
  }
  if (rows.empty()) return "";
  return absl::StrCat(
      "## What each costs\n\nPer step, medians; memory (of tensors, and of the "
      "whole process) and traffic of the rank with most.\n\n",
      MarkdownTable(
          {"strategy", "precision", "ranks", comparison.Unit() + "/s", "step",
           "memory predicted", "memory measured", "process", "bytes sent",
           "communication hidden", "communication exposed"},
          rows));
}

std::string SkippedList(const Comparison& comparison) {
  std::string text;
  for (const ComparedRun& run : comparison.runs) {
    if (run.status != ComparedRun::Status::kSkipped) continue;
    absl::StrAppend(&text, "- ", run.Label(), ": ", run.reason, "\n");
  }
  return text.empty() ? "" : absl::StrCat("## Left out\n\n", text, "\n");
}

}  // namespace

std::string MarkdownTable(const Row& head, const std::vector<Row>& rows) {
  const auto line = [](const Row& cells) {
    return absl::StrCat(
        "| ",
        absl::StrJoin(cells, " | ",
                      [](std::string* out, const std::string& cell) {
                        absl::StrAppend(out, Cell(cell));
                      }),
        " |\n");
  };
  std::string text = line(head);
  absl::StrAppend(&text, "|", absl::StrJoin(Row(head.size(), "---"), "|"),
                  "|\n");
  for (const Row& row : rows) absl::StrAppend(&text, line(row));
  return absl::StrCat(text, "\n");
}

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
  return JsonText(json, 1) + "\n";
}

std::string ReportMarkdown(const Comparison& comparison) {
  std::string text = absl::StrCat(
      "# ", comparison.name, "\n\n", comparison.time, ", ", comparison.device,
      ", ", comparison.max_steps, " steps of ", comparison.global_batch_size,
      " samples, one seed, the same data.\n\n", Verdict(comparison),
      "## One curve\n\nThe greatest relative "
      "distance from the reference, over all steps.\n\n");
  for (const ComparedPrecision& precision : comparison.precisions) {
    absl::StrAppend(&text, CurveTable(comparison, precision));
  }
  absl::StrAppend(&text, PrecisionTable(comparison), CostTable(comparison),
                  SkippedList(comparison),
                  "Plots are in report.html, all numbers in report.json; "
                  "docs/compare.md says how to read them.\n");
  return text;
}

std::string ReportHtml(const Comparison& comparison) {
  Page page;
  page.title = comparison.name;
  page.json = ReportJson(comparison);
  page.style = EmbeddedText(kComparePage, "page.css");
  page.script = EmbeddedText(kComparePage, "text.js") +
                EmbeddedText(kComparePage, "charts.js");
  page.noscript =
      "The plots need JavaScript; report.md beside this page does not.";
  return PageHtml(page);
}

std::string ReportJunit(const Comparison& comparison) {
  const auto quoted = [](const std::string& text) {
    std::string clean;
    // XML 1.0 has no other control characters.
    for (const char c : text) {
      if (static_cast<unsigned char>(c) >= 0x20 || c == '\n') clean += c;
    }
    return absl::StrCat("\"", HtmlText(clean), "\"");
  };
  std::string cases;
  int failures = 0, skipped = 0;
  for (const ComparedRun& run : comparison.runs) {
    std::string inside;
    if (run.status == ComparedRun::Status::kSkipped) {
      ++skipped;
      inside = absl::StrCat("<skipped message=", quoted(run.reason), "/>");
    }
    for (const std::string& problem : comparison.problems) {
      absl::string_view rest = problem;
      // "ddp fp32 on 2 ranks: loss differs ..", ".. failed: ..".
      if (!absl::ConsumePrefix(&rest, run.Label()) || rest.empty() ||
          !absl::StrContains(":, ", rest.substr(0, 1))) {
        continue;
      }
      absl::StrAppend(&inside, "<failure message=", quoted(problem), "/>");
    }
    if (absl::StrContains(inside, "<failure")) ++failures;
    absl::StrAppend(
        &cases, "  <testcase classname=", quoted(comparison.name),
        " name=", quoted(run.Label()),
        inside.empty() ? "/>\n" : absl::StrCat(">", inside, "</testcase>\n"));
  }
  return absl::StrCat(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=",
      quoted(comparison.name), " tests=\"", comparison.runs.size(),
      "\" failures=\"", failures, "\" skipped=\"", skipped, "\">\n", cases,
      "</testsuite>\n");
}

absl::Status WriteReports(const Comparison& comparison,
                          const std::string& folder) {
  CAPSTAN_RETURN_IF_ERROR(
      ReplaceFile(folder + "/report.json", ReportJson(comparison)));
  CAPSTAN_RETURN_IF_ERROR(
      ReplaceFile(folder + "/report.md", ReportMarkdown(comparison)));
  CAPSTAN_RETURN_IF_ERROR(
      ReplaceFile(folder + "/junit.xml", ReportJunit(comparison)));
  return ReplaceFile(folder + "/report.html", ReportHtml(comparison));
}

}  // namespace capstan
