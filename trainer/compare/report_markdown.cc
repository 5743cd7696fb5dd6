// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "trainer/compare/report.h"
#include "trainer/metrics/number_text.h"

namespace capstan {
namespace {

using Row = std::vector<std::string>;

constexpr char kUnknown[] = "?";

// Escapes what would end a cell.
std::string Cell(const std::string& text) {
  return absl::StrReplaceAll(text, {{"|", "\\|"}, {"\n", " "}});
}

std::string Table(const Row& head, const std::vector<Row>& rows) {
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
                    delta(run.loss_delta, precision.bounds.loss),
                    delta(run.grad_norm_delta, precision.bounds.grad_norm)});
  }
  if (rows.empty()) return "";
  return absl::StrCat(
      "### ", precision.name, "\n\n",
      absl::StrFormat("Bounds: loss %.2g, gradient norm %.2g.",
                      precision.bounds.loss, precision.bounds.grad_norm),
      "\n\n",
      Table({"strategy", "ranks", "accumulation", "final loss",
             "loss: max delta", "gradient norm: max delta"},
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
      Table({"precision", "loss: max delta", "gradient norm: max delta"},
            rows));
}

std::string CostTable(const Comparison& comparison) {
  std::vector<Row> rows;
  for (const ComparedRun& run : comparison.runs) {
    if (run.status != ComparedRun::Status::kCompleted) continue;
    const RunMeasurements& measured = run.measured;
    absl::optional<double> predicted;
    absl::optional<double> total;
    for (const MemoryUse& use : measured.memory) {
      if (use.category != "total") continue;
      predicted = use.predicted;
      total = use.measured;
    }
    absl::optional<double> hidden;
    if (measured.communication_seconds.has_value() &&
        measured.exposed_seconds.has_value()) {
      hidden = std::max(
          0.0, *measured.communication_seconds - *measured.exposed_seconds);
    }
    rows.push_back({run.strategy, run.precision, absl::StrCat(run.processes),
                    WithCommas(std::llround(measured.tokens_per_second)),
                    ShortDuration(measured.step_seconds), BytesText(predicted),
                    BytesText(total), BytesText(measured.peak_memory_bytes),
                    BytesText(measured.bytes_sent), SecondsText(hidden),
                    SecondsText(measured.exposed_seconds)});
  }
  if (rows.empty()) return "";
  return absl::StrCat(
      "## What each costs\n\nPer step, medians; memory (of tensors, and of the "
      "whole process) and traffic of the rank with most.\n\n",
      Table({"strategy", "precision", "ranks", comparison.Unit() + "/s", "step",
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

}  // namespace capstan
