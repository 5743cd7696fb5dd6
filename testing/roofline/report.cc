// SPDX-License-Identifier: Apache-2.0
#include "testing/roofline/report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "trainer/metrics/console.h"

namespace capstan {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kKernelsShown = 25;
constexpr double kGiB = 1 << 30;

using Kernels = std::vector<std::pair<std::string, KernelTotal>>;

// The longest first.
Kernels BySeconds(const StepTotals& totals) {
  Kernels kernels(totals.kernels.begin(), totals.kernels.end());
  std::stable_sort(kernels.begin(), kernels.end(),
                   [](const auto& a, const auto& b) {
                     return a.second.seconds > b.second.seconds;
                   });
  return kernels;
}

std::string KernelLine(const std::string& name, const KernelTotal& kernel) {
  return absl::StrFormat("%-40s %7d %9d %10.1f %9.2f %9.2f %9.3f\n", name,
                         kernel.works, kernel.launches, kernel.flops * 1e-9,
                         kernel.bytes * 1e-9, kernel.sent * 1e-9,
                         kernel.seconds * 1e3);
}

std::string KernelTable(const RooflineRow& row) {
  std::string text =
      absl::StrFormat("%-40s %7s %9s %10s %9s %9s %9s\n",
                      absl::StrCat("a step by kernel (ms: ", row.gpu->key, ")"),
                      "works", "launches", "GFLOP", "GB", "GB sent", "ms");
  const Kernels kernels = BySeconds(row.totals);
  KernelTotal others;
  for (size_t i = 0; i < kernels.size(); ++i) {
    const KernelTotal& kernel = kernels[i].second;
    if (i < kKernelsShown) {
      text += KernelLine(kernels[i].first, kernel);
      continue;
    }
    others.works += kernel.works;
    others.launches += kernel.launches;
    others.flops += kernel.flops;
    others.bytes += kernel.bytes;
    others.sent += kernel.sent;
    others.seconds += kernel.seconds;
  }
  if (others.works > 0) {
    text += KernelLine(absl::StrCat(kernels.size() - kKernelsShown, " others"),
                       others);
  }
  return text;
}

std::string Percent(double part, double of) {
  return of > 0 ? absl::StrFormat("%.0f %%", 100.0 * part / of) : "?";
}

std::string GpuLine(const RooflineRun& run, const RooflineRow& row) {
  const PredictedStep& step = row.step;
  const double mfu = row.Mfu(run);
  return absl::StrFormat(
      "%-16s %5d %9.2f %15s %9s %6s %9s %9s  %s\n", row.gpu->key,
      row.micro_batch, step.step * 1e3,
      absl::StrFormat("%.2f .. %.2f", row.fastest * 1e3, row.slowest * 1e3),
      ShortCount(row.TokensPerSecond(run, step.step)),
      mfu > 0 ? absl::StrFormat("%.0f %%", 100 * mfu) : "?",
      Percent(step.exposed_communication, step.step),
      Percent(step.exposed_host, step.step),
      row.Fits()
          ? ""
          : absl::StrFormat("doesn't fit: needs %.0f of %.0f GiB",
                            static_cast<double>(row.planned_bytes) / kGiB,
                            static_cast<double>(row.room_bytes) / kGiB));
}

Json KernelsJson(const StepTotals& totals) {
  Json kernels = Json::array();
  for (const auto& [name, kernel] : BySeconds(totals)) {
    kernels.push_back({{"name", name},
                       {"works", kernel.works},
                       {"launches", kernel.launches},
                       {"flops", kernel.flops},
                       {"bytes", kernel.bytes},
                       {"bytes_sent", kernel.sent},
                       {"seconds", kernel.seconds}});
  }
  return kernels;
}

Json GpuJson(const RooflineRun& run, const RooflineRow& row) {
  const PredictedStep& step = row.step;
  return {{"gpu", row.gpu->key},
          {"micro_batch", row.micro_batch},
          {"step_seconds", step.step},
          {"step_seconds_range", {row.fastest, row.slowest}},
          {"tokens_per_second", row.TokensPerSecond(run, step.step)},
          {"tokens_per_second_range",
           {row.TokensPerSecond(run, row.slowest),
            row.TokensPerSecond(run, row.fastest)}},
          {"mfu", row.Mfu(run)},
          {"busy_seconds", step.busy},
          {"communication_seconds", step.communication},
          {"exposed_communication_seconds", step.exposed_communication},
          {"exposed_host_seconds", step.exposed_host},
          {"arithmetic_bound_seconds", step.by_arithmetic},
          {"memory_bound_seconds", step.by_memory},
          {"overhead_bound_seconds", step.by_overhead},
          {"fits", row.Fits()},
          {"planned_bytes", row.planned_bytes},
          {"traced_bytes", row.traced_bytes},
          {"room_bytes", row.room_bytes}};
}

}  // namespace

double RooflineRow::TokensPerSecond(const RooflineRun& run, double seconds) {
  return seconds > 0 ? run.tokens * run.gpus / seconds : 0.0;
}

double RooflineRow::Mfu(const RooflineRun& run) const {
  const double peak = gpu->bf16 > 0 ? gpu->bf16 : gpu->fp16;
  return step.step > 0 ? run.model_flops / (step.step * peak) : 0.0;
}

std::string RooflineText(const RooflineRun& run,
                         const std::vector<RooflineRow>& rows) {
  const StepTotals& totals = rows.front().totals;
  std::string text = absl::StrCat(
      "Capstan roofline: ", run.name, ", ",
      ShortCount(static_cast<double>(run.parameters)), " parameters, ",
      run.strategy, ", ", run.precision, ", ", run.gpus, " GPU",
      run.gpus == 1 ? "" : "s",
      run.hosts == 1 ? "" : absl::StrCat(" of ", run.hosts, " hosts"),
      "\nAn estimate from what one rank's step asks of a GPU that isn't there, "
      "data sheets\nand assumed fractions of their peaks (--assumed), whose "
      "ranges give the step's. It\nwas never compared with a card.\n\n",
      KernelTable(rows.front()), "\n");
  absl::StrAppend(
      &text,
      absl::StrFormat(
          "%s tokens a rank: %d launches (%.3f a token), %.2f TFLOP, %.2f GB "
          "(%.0f bytes a token),\n%d waits of the host, %d allocations, %.3f "
          "GB "
          "sent; memory %.1f GiB by plan, %.1f GiB allocated\n\n",
          ShortCount(run.tokens), totals.launches,
          static_cast<double>(totals.launches) / std::max(1.0, run.tokens),
          totals.flops * 1e-12, totals.bytes * 1e-9,
          totals.bytes / std::max(1.0, run.tokens), totals.waits,
          totals.allocations, totals.sent * 1e-9,
          static_cast<double>(rows.front().planned_bytes) / kGiB,
          static_cast<double>(rows.front().traced_bytes) / kGiB));
  absl::StrAppend(
      &text, absl::StrFormat("%-16s %5s %9s %15s %9s %6s %9s %9s\n", "GPU",
                             "micro", "step ms", "range ms", "tokens/s", "MFU",
                             "exp.comm.", "host"));
  for (const RooflineRow& row : rows) text += GpuLine(run, row);
  return text;
}

std::string RooflineJson(const RooflineRun& run,
                         const std::vector<RooflineRow>& rows) {
  const StepTotals& totals = rows.front().totals;
  Json json = {{"estimate", true},
               {"name", run.name},
               {"gpus", run.gpus},
               {"hosts", run.hosts},
               {"strategy", run.strategy},
               {"precision", run.precision},
               {"parameters", run.parameters},
               {"tokens_per_rank", run.tokens},
               {"model_flops_per_rank", run.model_flops},
               {"planned_bytes", rows.front().planned_bytes},
               {"traced_bytes", rows.front().traced_bytes},
               {"launches", totals.launches},
               {"waits", totals.waits},
               {"allocations", totals.allocations},
               {"flops", totals.flops},
               {"bytes", totals.bytes},
               {"bytes_sent", totals.sent}};
  json["predictions"] = Json::array();
  for (const RooflineRow& row : rows) {
    json["predictions"].push_back(GpuJson(run, row));
  }
  json["kernels"] = KernelsJson(totals);
  return json.dump(1, ' ', /*ensure_ascii=*/false,
                   Json::error_handler_t::replace) +
         "\n";
}

}  // namespace capstan
