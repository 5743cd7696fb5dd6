// SPDX-License-Identifier: Apache-2.0
#include "trainer/metrics/reporter.h"

#include <unistd.h>

#include <algorithm>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/files.h"
#include "base/json.h"
#include "base/npy.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "trainer/metrics/console.h"
#include "trainer/metrics/curve.h"
#include "trainer/metrics/metrics_log.h"
#include "trainer/metrics/progress_bar.h"
#include "trainer/metrics/run_end.h"
#include "trainer/metrics/tensorboard_writer.h"

namespace capstan {
namespace {

constexpr char kBold[] = "\x1b[1m";
constexpr char kPlain[] = "\x1b[0m";

// "  eval_loss 0.8312", "  eval_rewards_chosen 0.1000" for each.
std::string TaggedText(const TaggedNumbers& tagged) {
  std::string text;
  for (const auto& [tag, value] : tagged) {
    absl::StrAppendFormat(&text, "  %s %.4f", MetricName(tag), value);
  }
  return text;
}

// Makes empty and blank texts visible.
std::string ShownText(const std::string& text) {
  if (text.empty()) return "(empty)";
  return absl::StripAsciiWhitespace(text).empty() ? "(white space alone)"
                                                  : PrintableText(text);
}

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

Json FilesJson(const std::vector<CountedFile>& files) {
  Json list = Json::array();
  for (const CountedFile& file : files) {
    Json json = {{"path", file.path}};
    for (const auto& [name, count] : file.counts) json[name] = count;
    list.push_back(std::move(json));
  }
  return list;
}

std::string BytesOrUnknown(const absl::optional<int64_t>& bytes) {
  return bytes.has_value() ? ShortBytes(*bytes) : "?";
}

// "planned 1.20 GiB  measured 1.19 GiB", one line per category.
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
        absl::StrCat(
            absl::StrFormat("planned %9s", BytesOrUnknown(bytes.predicted)),
            // On GPUs only the total is.
            bytes.measured.has_value()
                ? absl::StrFormat("  measured %9s", ShortBytes(*bytes.measured))
                : ""));
  }
}

// "13,104, 9,871 of them trained on; padding takes 14.2 % of the positions".
std::string Amount(const RunSummary& summary) {
  std::string text = WithCommas(summary.tokens);
  if (summary.unit != kTokenUnit) return text;
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

std::string BannerText(const RunFacts& facts, bool bold) {
  const std::string batch =
      BatchText(facts.global_batch_size, facts.micro_batch_size,
                facts.world_size, facts.sequence, facts.accumulation);
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
  if (!facts.cores.empty()) {
    rows.insert(rows.begin() + 2, {"cores", facts.cores + ", rank 0"});
  }
  if (!facts.placed_by.empty()) {
    rows.insert(rows.begin() + 1, {"placed by", facts.placed_by});
  }
  return absl::StrCat(bold ? kBold : "", "Capstan: ", facts.name,
                      bold ? kPlain : "", "\n", TableText(rows), "\n");
}

std::string SummaryJson(const RunSummary& summary, const std::string& devices) {
  Json json;
  json["status"] = summary.status;
  json["steps"] = summary.steps;
  json[summary.unit] = summary.tokens;
  if (summary.unit == kTokenUnit) {
    json["trained_tokens"] = summary.trained_tokens;
    json["padding"] = summary.padding;
  }
  json["parameters"] = summary.parameters;
  json["world_size"] = summary.world_size;
  json["devices"] = devices;
  json["strategy"] = summary.strategy;
  json["precision"] = summary.precision;
  json["ready_seconds"] = summary.ready_seconds;
  json["step_seconds_median"] = summary.step_seconds_median;
  json[summary.unit + "_per_second"] = summary.tokens_per_second;
  json["bytes_sent_per_step"] = summary.bytes_sent_per_step;
  json["communication_seconds"] = OrNull(summary.communication_seconds);
  json["exposed_communication_seconds"] =
      OrNull(summary.exposed_communication_seconds);
  if (summary.mfu.has_value()) json["mfu"] = *summary.mfu;
  if (summary.hfu.has_value()) json["hfu"] = *summary.hfu;
  if (summary.gpu_memory.has_value()) {
    json["gpu_memory"] = {
        {"peak_allocated_bytes", summary.gpu_memory->peak_allocated},
        {"peak_reserved_bytes", summary.gpu_memory->peak_reserved}};
  }
  json["saves"] = summary.saving.saves;
  json["saves_waited_for"] = summary.saving.waits;
  json["save_seconds"] = summary.saving.save_seconds;
  json["mirrored_steps"] = summary.saving.mirrored_steps;
  json["mirror_seconds"] = summary.saving.mirror_seconds;
  json["train_seconds"] = summary.saving.train_seconds;
  json["peak_memory_bytes"] = summary.peak_memory_bytes;
  json["memory_growth_bytes"] = summary.memory_growth_bytes;
  json["process_memory"] = {
      {"predicted", OrNull(summary.planned_process_bytes)},
      {"measured", OrNull(LargestPeak(summary))}};
  json["memory"] = MemoryJson(summary.memory);
  json["train_files"] = FilesJson(summary.train_files);
  json["eval_files"] = FilesJson(summary.eval_files);
  json["final_loss"] = OrNull(summary.final_loss);
  json["eval_loss"] = nullptr;  // not of all runs
  for (const auto& [tag, value] : summary.measured) {
    json[MetricName(tag)] = value;
  }
  json["best_" + summary.best_metric] = OrNull(summary.best_value);
  json["best_step"] = OrNull(summary.best_step);
  return JsonText(json, 2) + "\n";
}

// "0.12 s in 4 saves while training, 0.3 % of the run; 1 waited for the one
// before".
void AddSaving(const SavingCost& cost,
               std::vector<std::pair<std::string, std::string>>* rows) {
  const auto share = [&](double seconds) {
    return absl::StrFormat(
        "%.1f %% of the run",
        100.0 * seconds / std::max(cost.train_seconds, 1e-9));
  };
  if (cost.saves > 0) {
    rows->emplace_back(
        "saving",
        absl::StrCat(ShortDuration(cost.save_seconds), " in ", cost.saves,
                     cost.saves == 1 ? " save" : " saves", " while training, ",
                     share(cost.save_seconds),
                     cost.waits == 0 ? ""
                                     : absl::StrCat("; ", cost.waits,
                                                    " waited for the one "
                                                    "before")));
  }
  if (cost.mirrored_steps > 0) {
    rows->emplace_back(
        "mirror",
        absl::StrCat(ShortDuration(cost.mirror_seconds /
                                   static_cast<double>(cost.mirrored_steps)),
                     " each of ", WithCommas(cost.mirrored_steps), " times, ",
                     share(cost.mirror_seconds)));
  }
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
  for (const auto& [tag, value] : summary.measured) {
    const std::string name = MetricName(tag);
    std::string text = absl::StrFormat("%.4f", value);
    if (name == summary.best_metric && summary.best_step.has_value() &&
        summary.best_value.value_or(value) != value) {
      absl::StrAppendFormat(&text, ", best %.4f after step %d",
                            *summary.best_value, *summary.best_step);
    }
    rows.emplace_back(name, text);
  }
  rows.emplace_back(
      "speed",
      absl::StrCat(WithCommas(static_cast<int64_t>(summary.tokens_per_second)),
                   " ", summary.unit, "/s, ",
                   ShortDuration(summary.step_seconds_median), " a step"));
  if (summary.mfu.has_value()) {
    std::string text = absl::StrFormat("%.1f %%", 100.0 * *summary.mfu);
    if (summary.hfu.has_value()) {
      absl::StrAppendFormat(&text, ", %.1f %% with what is recomputed",
                            100.0 * *summary.hfu);
    }
    rows.emplace_back("MFU", text);
  }
  if (summary.world_size > 1) {
    rows.emplace_back("communication", Communication(summary));
  }
  AddSaving(summary.saving, &rows);
  rows.emplace_back("ready after", ShortDuration(summary.ready_seconds));
  if (const absl::optional<int64_t> peak = LargestPeak(summary)) {
    std::string text = ShortBytes(*peak);
    if (summary.planned_process_bytes.has_value()) {
      absl::StrAppend(&text, " of the process, planned ",
                      ShortBytes(*summary.planned_process_bytes));
    }
    if (summary.gpu_memory.has_value()) {
      absl::StrAppend(&text, " in tensors, ",
                      ShortBytes(summary.gpu_memory->peak_reserved),
                      " reserved");
    }
    rows.emplace_back(
        "peak memory",
        absl::StrCat(text, summary.world_size > 1 ? " (largest rank)" : ""));
  }
  AddMemory(summary.memory, &rows);
  rows.emplace_back("output", output_dir);
  return absl::StrCat("\n", TableText(rows));
}

std::string MetricsPath(const std::string& output_dir) {
  return output_dir + "/metrics.jsonl";
}

class ReporterImpl : public Reporter {
 public:
  ReporterImpl(const RunFacts& facts, MetricsLog log,
               GenerationsLog generations,
               std::unique_ptr<TensorBoardWriter> tensorboard)
      : facts_(facts),
        console_(STDOUT_FILENO),
        bar_(&console_, facts),
        log_(std::move(log)),
        generations_(std::move(generations)),
        events_(facts.output_dir + "/events.jsonl"),
        tensorboard_(std::move(tensorboard)) {}

  void Banner() override {
    bar_.PrintAbove(BannerText(facts_, console_.terminal()));
    if (log_.missing() == 0) return;
    Note(absl::StrCat("WARNING: metrics.jsonl has no line of ", log_.missing(),
                      " of the ", facts_.first_step,
                      " steps before: it was removed or cut"));
  }

  void Step(const StepMetrics& metrics) override {
    status_.Update(log_.Step(metrics));
    status_.Update(tensorboard_->Step(metrics));
    bar_.Step(metrics);
    if (metrics.skipped && !events_.LastWas(kSkippedEvent, metrics.step)) {
      Event({kSkippedEvent, metrics.step,
             absl::StrCat("step ", metrics.step, " makes no update")});
    }
  }

  void Eval(int64_t step, const TaggedNumbers& measured) override {
    status_.Update(log_.Numbers(step, measured));
    status_.Update(tensorboard_->Scalars(step, measured));
    Note(absl::StrCat("step ", step, TaggedText(measured)));
  }

  void Measured(int64_t step, const Measurement& measurement) override;

  std::vector<std::string> pictures() const override {
    std::vector<std::string> names;
    for (const auto& [name, curves] : curves_) names.push_back(name);
    return names;
  }

  void Evaluating(double done) override { bar_.Evaluating(done); }

  void Generations(int64_t step, const std::string& title,
                   const std::vector<Generation>& generations) override;

  bool HasGenerations(int64_t step) const override {
    return generations_.Has(step);
  }

  void Note(const std::string& line) override {
    bar_.PrintAbove(absl::StrCat(PrintableText(line), "\n"));
  }

  void Event(const RunEvent& event) override {
    const absl::Status added = events_.Add(event);
    if (!added.ok()) {
      Note(absl::StrCat("WARNING: ", added.message(),
                        ": what happens isn't recorded any more"));
    }
    const bool last = event.kind == kEndEvent || event.kind == kStopEvent;
    if (!finished_ || !last) return;
    for (const auto& make : AtRunEnd()) {
      const absl::Status made = make(facts_.output_dir);
      if (!made.ok()) Note(absl::StrCat("WARNING: ", made.message()));
    }
  }

  void SetEnd(int64_t max_steps) override { bar_.SetEnd(max_steps); }

  void Table(const std::string& lines) override {
    bar_.PrintAbove(PrintableText(lines));
  }

  void Finish(const RunSummary& summary) override {
    bar_.End();
    status_.Update(tensorboard_->Flush());
    status_.Update(ReplaceFile(facts_.output_dir + "/summary.json",
                               SummaryJson(summary, facts_.device)));
    console_.Write(SummaryTable(summary, facts_.output_dir));
    finished_ = true;
  }

  absl::Status status() const override { return status_; }
  absl::Status Check(const std::string& output_dir) const override {
    CAPSTAN_RETURN_IF_ERROR(status_);
    return log_.Check(MetricsPath(output_dir));
  }

 private:
  void Show(int64_t step, const std::string& title, const std::string& prompt,
            const std::string& text, bool answer,
            const absl::optional<std::string>& before);

  const RunFacts facts_;
  const Console console_;
  ProgressBar bar_;
  MetricsLog log_;
  GenerationsLog generations_;
  EventLog events_;
  const std::unique_ptr<TensorBoardWriter> tensorboard_;
  // Measured curves and their steps, by name.
  std::map<std::string, std::vector<std::pair<int64_t, MeasuredCurve>>> curves_;
  absl::Status status_;
  bool finished_ = false;
};

void ReporterImpl::Measured(int64_t step, const Measurement& measurement) {
  if (!measurement.scalars.empty()) Eval(step, measurement.scalars);
  const std::string folder = facts_.output_dir + "/";
  for (const MeasuredCurve& curve : measurement.curves) {
    status_.Update(
        tensorboard_->Histogram(step, "eval/" + curve.name, curve.values));
    std::vector<std::pair<int64_t, MeasuredCurve>>& drawn = curves_[curve.name];
    drawn.emplace_back(step, curve);
    status_.Update(ReplaceFile(absl::StrCat(folder, curve.name, ".svg"),
                               MeasuredCurvesSvg(drawn)));
  }
  for (const MeasuredArray& array : measurement.arrays) {
    status_.Update(WriteNpy<double>(absl::StrCat(folder, array.name, ".npy"),
                                    array.shape, array.values));
  }
}

void ReporterImpl::Generations(int64_t step, const std::string& title,
                               const std::vector<Generation>& generations) {
  // Indented text is verbatim in Markdown.
  const auto indented = [](const std::string& text) {
    return absl::StrReplaceAll(absl::StrCat("    ", text), {{"\n", "\n    "}});
  };
  std::string markdown;
  for (const Generation& generation : generations) {
    const std::string prompt = PrintableText(generation.prompt);
    const std::string text = ShownText(generation.text);
    absl::optional<std::string> before;
    if (step > 0) before = generations_.Before(generation.prompt);
    if (before.has_value()) before = ShownText(*before);
    status_.Update(generations_.Add(step, generation));
    Show(step, PrintableText(title), prompt, text, generation.answer, before);
    const std::string between = generation.answer ? "\n\n" : "";
    if (before.has_value()) {
      absl::StrAppend(&markdown, "**before training**\n\n",
                      indented(absl::StrCat(prompt, between, *before)), "\n\n");
    }
    absl::StrAppend(&markdown, "**", PrintableText(title), "**\n\n",
                    indented(absl::StrCat(prompt, between, text)), "\n\n");
  }
  while (absl::EndsWith(markdown, "\n")) markdown.pop_back();
  if (!markdown.empty()) status_.Update(tensorboard_->Text(step, markdown));
}

void ReporterImpl::Show(int64_t step, const std::string& title,
                        const std::string& prompt, const std::string& text,
                        bool answer,
                        const absl::optional<std::string>& before) {
  const bool terminal = console_.terminal();
  std::string shown =
      absl::StrCat("--- sample ", title, " (step ", step, ") ---\n",
                   terminal ? kBold : "", prompt, terminal ? kPlain : "");
  if (answer || before.has_value()) absl::StrAppend(&shown, "\n");
  absl::StrAppend(&shown, before.has_value()
                              ? SideBySide("before training", *before, title,
                                           text, console_.Columns())
                              : text);
  if (!absl::EndsWith(shown, "\n")) absl::StrAppend(&shown, "\n");
  bar_.PrintAbove(absl::StrCat(shown, "---\n"));
}

}  // namespace

std::string MetricName(const std::string& tag) {
  return absl::StrReplaceAll(absl::StripPrefix(tag, "train/"), {{"/", "_"}});
}

absl::optional<double> MetricIn(const TaggedNumbers& numbers,
                                const std::string& name) {
  for (const auto& [tag, value] : numbers) {
    if (MetricName(tag) == name) return value;
  }
  return absl::nullopt;
}

std::string RanksText(int ranks, int sequence) {
  return absl::StrCat(ranks, ranks == 1 ? " rank" : " ranks",
                      sequence > 1 ? absl::StrCat(" / ", sequence) : "");
}

std::string BatchText(int64_t global, int64_t micro, int ranks, int sequence,
                      int64_t accumulation) {
  const bool whole = micro * (ranks / sequence) * accumulation == global;
  return absl::StrCat(global, whole ? " = micro " : ", at most micro ", micro,
                      " x ", RanksText(ranks, sequence), " x accumulation ",
                      accumulation);
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle]
                                : 0.5 * (values[middle - 1] + values[middle]);
}

double PaddingShare(double tokens, double padding) {
  return padding > 0.0 ? padding / (tokens + padding) : 0.0;
}

Reporter::~Reporter() = default;

absl::StatusOr<std::unique_ptr<Reporter>> Reporter::Create(
    const RunFacts& facts) {
  CAPSTAN_ASSIGN_OR_RETURN(
      MetricsLog log,
      MetricsLog::Open(MetricsPath(facts.output_dir), facts.first_step,
                       facts.unit, facts.evaluate_again));
  CAPSTAN_ASSIGN_OR_RETURN(
      GenerationsLog generations,
      GenerationsLog::Open(facts.output_dir + "/generations.jsonl",
                           facts.first_step));
  CAPSTAN_ASSIGN_OR_RETURN(
      std::unique_ptr<TensorBoardWriter> tensorboard,
      TensorBoardWriter::Open(facts.output_dir + "/tensorboard",
                              facts.first_step, facts.unit));
  CAPSTAN_RETURN_IF_ERROR(tensorboard->HParams(facts.settings));
  return std::unique_ptr<Reporter>(std::make_unique<ReporterImpl>(
      facts, std::move(log), std::move(generations), std::move(tensorboard)));
}

absl::optional<int64_t> CompletedSteps(const std::string& output_dir) {
  const absl::StatusOr<std::string> text =
      ReadWholeFile(output_dir + "/summary.json");
  if (!text.ok()) return absl::nullopt;
  const Json json = ParseJson<Json>(*text);
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
